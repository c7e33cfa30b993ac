"""What a run minimises: sums over what a batch asks for, which the caller divides once."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

Batch = dict[str, Int[Array, "B _"]]
# name -> (sum, weight): what adds up over batches, devices and steps
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
# Sum of the losses to minimise in nats, its weight, and the sums that a task reports
Result = tuple[Float[Array, ""], Float[Array, ""], Sums]
# (outputs of the model, batch) -> Result
Loss = Callable[[Any, Batch], Result]

# What `cross_entropy` sums up.
METRICS = ("loss", "token_loss", "accuracy")


def means(window: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """name -> sum / weight in float64, of (sum, weight) scalars on any device.

    A "token_loss", in nats, brings along its "perplexity" (infinite where it overflows).

    Raises:
      ValueError: a weight is 0, so that there is nothing to take the mean of.
    """
    sums = {name: np.asarray(pair, np.float64) for name, pair in jax.device_get(window).items()}
    empty = [name for name, (_, weight) in sums.items() if weight == 0]
    if empty:
        raise ValueError(f"no mean of {', '.join(empty)}: the weight is 0 (no real tokens)")
    result = {name: float(total / weight) for name, (total, weight) in sums.items()}
    if "token_loss" in result:
        with np.errstate(over="ignore"):
            result["perplexity"] = float(np.exp(result["token_loss"]))
    return result


def next_token_loss(
    logits: Float[Array, "B T V"], batch: Batch, *, label_smoothing: float, z_loss: float
) -> Result:
    """Cross-entropy of every real target token; their number is the weight."""
    return chosen_loss(
        logits,
        batch["targets"],
        batch["targets_segment_ids"] != 0,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )


def label_loss(
    logits: Float[Array, "B T C"], batch: Batch, *, label_smoothing: float, z_loss: float
) -> Result:
    """Cross-entropy of the label at every place that has one; their number is the weight.

    `labels` holds label + 1 there and 0 everywhere else.
    """
    labels = batch["labels"] - 1
    return chosen_loss(
        logits,
        jnp.maximum(labels, 0),
        labels >= 0,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )


def chosen_loss(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    chosen: Bool[Array, "B T"],
    *,
    label_smoothing: float,
    z_loss: float,
) -> Result:
    """Cross-entropy of the targets at the chosen places; their number is the weight."""
    weights = chosen.astype(jnp.float32)
    sums = cross_entropy(logits, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
    weight = jnp.sum(weights)
    return sums["loss"], weight, {name: (value, weight) for name, value in sums.items()}


def cross_entropy(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    *,
    label_smoothing: float,
    z_loss: float,
) -> dict[str, Float[Array, ""]]:
    """Weighted sums over all tokens, in nats, under the names of `METRICS`.

    loss: against the target distribution that has 1 - label_smoothing on the target and
      label_smoothing / V on each of the V tokens (Szegedy et al. 2015, section 7, and PyTorch;
      tensor2tensor leaves the target out of the second part), plus z_loss * log(Z)^2 (de
      Brébisson and Vincent 2016; weighted as in PaLM, section 5).
    token_loss: -log p(target). exp of its mean is the perplexity.
    accuracy: 1 where no token is likelier than the target.
    """
    log_z, target_logit, mean_logit, correct = _statistics(logits, targets)
    token_loss = log_z - target_logit
    loss = log_z - (1 - label_smoothing) * target_logit - label_smoothing * mean_logit
    loss = loss + z_loss * jnp.square(log_z)
    values = (loss, token_loss, correct)
    return {name: jnp.sum(value * weights) for name, value in zip(METRICS, values, strict=True)}


# The loss and its gradient need only these numbers of each row of logits. The derivative is
# written out because autodiff would scatter the target's part into a second (B, T, V) array and
# keep a third; this way one exp, kept from the forward pass, is all that is as large as logits.
@jax.custom_vjp
def _statistics(
    logits: Float[Array, "*B V"], targets: Int[Array, "*B"]
) -> tuple[Float[Array, "*B"], Float[Array, "*B"], Float[Array, "*B"], Bool[Array, "*B"]]:
    """log of the sum of exp, the target's logit, the mean logit, and whether the target is top."""
    return _statistics_forward(logits, targets)[0]


def _statistics_forward(logits, targets):
    logits = logits.astype(jnp.float32)
    top = jnp.max(logits, axis=-1)
    exp = jnp.exp(logits - top[..., None])
    total = jnp.sum(exp, axis=-1)
    target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    # Not argmax: on CPU it costs more than all the rest of the forward pass.
    correct = target_logit >= top
    statistics = top + jnp.log(total), target_logit, jnp.mean(logits, axis=-1), correct
    return statistics, (exp, total, targets)


def _statistics_backward(residuals, cotangents):
    exp, total, targets = residuals
    d_log_z, d_target, d_mean, _ = cotangents
    vocab_size = exp.shape[-1]
    is_target = (
        jax.lax.broadcasted_iota(targets.dtype, exp.shape, exp.ndim - 1) == targets[..., None]
    )
    softmax_part = exp * (d_log_z / total)[..., None]
    target_part = jnp.where(is_target, d_target[..., None], 0.0)
    return softmax_part + target_part + (d_mean / vocab_size)[..., None], None


_statistics.defvjp(_statistics_forward, _statistics_backward)
