"""Losses of a batch by where a token stands, by layer, and what rows of it agree on."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.inspection.observed import Observed
from transformer_jax.models.family import Batch, Model, Outputs, Params, with_memory
from transformer_jax.models.layers.embeddings import Unprojected, scaled
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.transformer.config import scheme, stacks
from transformer_jax.training.losses import Loss, PlaceLoss


def mean_loss(model: Model, loss: Loss, params: Params, batch: Batch) -> Float[Array, ""]:
    """The loss that training minimises, a mean over the batch, without dropout and memory."""
    loss_sum, weight = summed_loss(model, loss, params, batch)
    return loss_sum / weight


def summed_loss(
    model: Model, loss: Loss, params: Params, batch: Batch
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The two numbers that the `mean_loss` is the ratio of."""
    outputs, _ = with_memory(model, params, batch, None, ())
    loss_sum, weight, _ = loss(outputs, batch)
    return loss_sum, weight


def gradients(model: Model, loss: Loss, params: Params, batch: Batch) -> Params:
    """Of the `mean_loss`, before clipping."""
    return jax.grad(mean_loss, argnums=2)(model, loss, params, batch)


def of_tokens(outputs: Outputs, batch: Batch, loss: Loss) -> Float[Array, "B T"] | None:
    """Nats of each token; NaN where it is not asked for. None: the loss is of other things."""
    if isinstance(loss.function, PlaceLoss) and isinstance(outputs.values, Unprojected):
        return loss.function.each(outputs, batch)
    return None


def places(segments: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Where tokens stand in what their row has of their text, from 0. Where a row goes on with the
    text of the one before, positions count from that text's beginning, which it does not have."""
    index = jnp.arange(segments.shape[1])[None]
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return index - jax.lax.cummax(jnp.where(begins, index, 0), axis=1)


def by_place(losses: Float[Array, "B T"], places: Int[Array, "B T"]) -> Float[Array, "bins"]:
    """The mean loss of tokens at places 0, 1, 2 and 3, 4 to 7, ... of their text; NaN where none.

    places: from 0.
    """
    bins = (losses.shape[1] - 1).bit_length() + 1
    bin_of = 32 - jax.lax.clz(places.astype(jnp.int32))  # logarithms round 8192 down on CPUs
    return jnp.stack([jnp.nanmean(jnp.where(bin_of == n, losses, jnp.nan)) for n in range(bins)])


def in_context_score(losses: Float[Array, "B T"], places: Int[Array, "B T"]) -> Float[Array, ""]:
    """The mean loss in the last eighth of the longest text, less that of its second sixteenth.

    Olsson et al. 2022 (2209.11895) take the 500th token of 512 less the 50th.
    """
    length = 1 + jnp.max(jnp.where(jnp.isnan(losses), 0, places))
    late = places >= length - jnp.maximum(length // 8, 1)
    first = length // 16
    early = (places >= first) & (places < jnp.maximum(length // 8, first + 1))
    late, early = (jnp.nanmean(jnp.where(part, losses, jnp.nan)) for part in (late, early))
    return late - early


def lens(
    model: Model, loss: Loss, params: Params, batch: Batch, outputs: Outputs, activations: Observed
) -> Float[Array, "n"] | None:
    """The mean loss of the logits that the stream after each sublayer gives, behind the model's
    last norm: the logit lens. None: a loss of other things than tokens; or logits of something
    that is not that stream, but has other layers, a pooling or a second stream before it."""
    function, values, config = loss.function, outputs.values, model.config
    if not (isinstance(function, PlaceLoss) and isinstance(values, Unprojected)):
        return None
    *_, last = stacks(config)
    head, residual = HEADS[config.head], scheme(config, last)
    straight = head.module is None or head.labels
    if not straight or (head.pooled and config.pooling != "first") or residual.summed_branches:
        return None

    def behind_norm(x: Float[Array, "B T D"]) -> Float[Array, ""]:
        if residual.ends_in_norm:
            norm = Norm(config.norm, config.norm_epsilon)
            x = jnp.asarray(norm.apply({"params": params.get(f"{last}_norm", {})}, x))
        lens_outputs = outputs._replace(values=dataclasses.replace(values, x=scaled(config, x)))
        return jnp.nanmean(function.each(lens_outputs, batch))

    return jax.lax.map(behind_norm, activations.outputs)


def noise(model: Model, loss: Loss, params: Params, batch: Batch) -> dict[str, Float[Array, ""]]:
    """The squared gradient of the expected loss, and the trace of what single rows deviate by.

    Unbiased, and so below 0 at times (McCandlish et al. 2018, 1812.06162, appendix A.1, with one
    row and all): average each over many steps before the ratio trace / square, which is the simple
    noise scale in rows. Rows count by their weights, as many targets as each has; where these
    differ, both are ratios of sums, with a bias of the order of 1 / rows of them.
    """
    rows, batch = len(next(iter(batch.values()))), loss.with_totals(batch)
    gradient = jax.grad(lambda x, batch: summed_loss(model, loss, x, batch), has_aux=True)
    total, weight = gradient(params, batch)
    mean = jax.tree.map(lambda leaf: leaf / weight, total)

    def square(params: Params) -> Float[Array, ""]:
        return sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(params)), jnp.zeros(()))

    def off(row: Batch) -> Float[Array, ""]:
        own, own_weight = gradient(params, jax.tree.map(lambda column: column[None], row))
        scale = rows / weight
        return square(jax.tree.map(lambda g, m: scale * (g - own_weight * m), own, mean))

    trace = jnp.sum(jax.lax.map(off, batch)) / (rows - 1)
    return {"square": square(mean) - trace / rows, "trace": trace}
