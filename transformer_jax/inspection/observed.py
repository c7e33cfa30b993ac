"""What a pass through a model shows of each stack's sublayers, and what that alone tells.

A stack's n sublayers come in the order in which they run. Means are over real tokens: padding does
not count.
"""

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.models.family import Batch, Model, Outputs, Params
from transformer_jax.models.transformer.config import TransformerConfig, depth, stacks, tells_set
from transformer_jax.models.transformer.residual import variance
from transformer_jax.models.transformer.schemes import Kind, Stack
from transformer_jax.training.losses import Loss


class Observed(NamedTuple):
    """What a forward pass showed of one stack.

    Attributes:
      inputs, branches, outputs: the residual stream before each sublayer, what its branch adds
        (scaled, after dropout), and the stream after it.
      final: what leaves the stack, after its last norm.
      segments: the number of each token's text in its row; 0 is padding.
      weights: the share of each query's weight that each key has (`AttentionWeights.shares`); a
        row's own come after those of a memory.
      entropy, largest_logit: one number for each query of each kind of attention, in nats.
      query_norm, key_norm: of each query, scaled as the score has it, and of the keys it sees. As
        most models here have no bias of keys, an imported one's is in neither these nor the logits.
      value_norm: of each key's value.
    """

    inputs: Float[Array, "n B T D"]
    branches: Float[Array, "n B T D"]
    outputs: Float[Array, "n B T D"]
    final: Float[Array, "B T D"]
    segments: Int[Array, "B T"]
    weights: dict[Kind, Float[Array, "L B H T S"]]
    entropy: dict[Kind, Float[Array, "L B H T"]]
    largest_logit: dict[Kind, Float[Array, "L B H T"]]
    query_norm: dict[Kind, Float[Array, "L B H T"]]
    key_norm: dict[Kind, Float[Array, "L B H T"]]
    value_norm: dict[Kind, Float[Array, "L B H S"]]

    @property
    def real(self) -> Bool[Array, "B T"]:
        """Which tokens are not padding."""
        return self.segments > 0


def observe(
    model: Model,
    params: Params,
    batch: Batch,
    rng: Key[Array, ""] | None = None,
    perturbations: Any = None,
    memory: Any = (),
) -> tuple[Outputs, dict[Stack, Observed]]:
    """One forward pass: the outputs, and what each stack showed.

    Args:
      rng: the key of dropout; None is deterministic.
      perturbations: what to add to the sublayers' outputs, as `no_perturbations` has it.
      memory: what the model kept of the batch before (see `with_memory`); (): nothing.
    """
    # Other kernels never hold a query's weights.
    model = model.clone(config=dataclasses.replace(model.config, attention_kernel="xla"))
    variables = {"params": params, "memory": memory} if memory else {"params": params}
    if perturbations is not None:
        variables["perturbations"] = perturbations
    outputs, collections = model.apply(
        variables,
        batch,
        deterministic=rng is None,
        rngs={} if rng is None else {"dropout": rng},
        method="outputs",
        mutable=["intermediates"],
    )
    intermediates, config = collections["intermediates"], model.config
    return outputs, {
        stack: _observed(config, stack, intermediates, batch) for stack in stacks(config)
    }


def _observed(config: TransformerConfig, stack: Stack, tree: Any, batch: Batch) -> Observed:
    if tells_set(config, stack):
        segments = jnp.ones(tree[f"{stack}_output"].shape[:2], jnp.int32)  # a query each
    else:
        segments = batch["inputs_segment_ids" if stack == "encoder" else "targets_segment_ids"]
    attentions: dict[Kind, Any] = {
        kind: tree[stack][kind] for kind in depth(config, stack).kinds if kind != "feed_forward"
    }

    def of_queries(name: str) -> dict[Kind, Float[Array, "L B H T *S"]]:
        return {kind: attention[name] for kind, attention in attentions.items()}

    return Observed(
        inputs=in_order(config, stack, tree, "input"),
        branches=in_order(config, stack, tree, "branch"),
        outputs=in_order(config, stack, tree, "output"),
        final=tree[f"{stack}_output"],
        segments=segments,
        weights=of_queries("weights"),
        entropy=of_queries("entropy"),
        largest_logit=of_queries("largest_logit"),
        query_norm=of_queries("query_size"),
        key_norm=of_queries("key_size"),
        value_norm={kind: _norms(attention["values"]) for kind, attention in attentions.items()},
    )


def _norms(values: Float[Array, "L B S H K"]) -> Float[Array, "L B H S"]:
    return jnp.linalg.norm(values.astype(jnp.float32), axis=-1).swapaxes(2, 3)


def sublayers(config: TransformerConfig, stack: Stack) -> list[tuple[int, Kind]]:
    """The layer, from 0, and the kind of a stack's sublayers, in the order in which they run."""
    at = depth(config, stack)
    return [(layer, kind) for layer in range(at.layers) for kind in at.kinds]


def in_order(
    config: TransformerConfig, stack: Stack, tree: Any, *path: str
) -> Float[Array, "n *shape"]:
    """What lies at `path` in the residual connections of all sublayers, in their order.

    tree: parameters, intermediates or perturbations of a model.
    """
    connections = [tree[stack][f"{kind}_residual"] for kind in depth(config, stack).kinds]
    kinds = [functools.reduce(operator.getitem, path, node) for node in connections]
    sublayers = jnp.stack(kinds, axis=1)
    return sublayers.reshape(-1, *sublayers.shape[2:])


def no_perturbations(model: Model, params: Params, batch: Batch) -> Any:
    """Zeros that can be added to the sublayers' outputs, to differentiate with respect to them."""

    def perturbations(params):
        _, variables = model.apply(
            {"params": params}, batch, deterministic=True, mutable=["perturbations"]
        )
        return variables["perturbations"]

    shapes = jax.eval_shape(perturbations, params)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def output_gradients(
    config: TransformerConfig, gradients: Any
) -> dict[Stack, Float[Array, "n B T D"]]:
    """Gradients with respect to the sublayers' outputs, from those of `no_perturbations`."""
    return {stack: in_order(config, stack, gradients, "output") for stack in stacks(config)}


def output_gradient_norms(
    model: Model, loss: Loss, params: Params, batch: Batch
) -> dict[Stack, Float[Array, "n"]]:
    """Norm of the gradient of the mean loss with respect to each sublayer's output, without
    dropout."""

    def mean_loss(perturbations):
        variables = {"params": params, "perturbations": perturbations}
        outputs = model.apply(variables, batch, deterministic=True, method="outputs")
        loss_sum, weight, _ = loss(outputs, batch)
        return loss_sum / weight

    gradients = jax.grad(mean_loss)(no_perturbations(model, params, batch))
    return {
        stack: jnp.sqrt(jnp.sum(jnp.square(outputs), axis=(1, 2, 3)))
        for stack, outputs in output_gradients(model.config, gradients).items()
    }


def output_change(before: Observed, after: Observed, size: float = 1.0) -> Float[Array, ""]:
    """|F(x, W) - F(x, W*)|^2 / (D size^2), where F is a token of what leaves the stack.

    A mean over tokens. size: of the step from W to W* in every entry.
    """
    squares = jnp.mean(jnp.square(after.final - before.final), axis=-1)
    return jnp.mean(squares, where=before.real) / size**2


def variances(x: Float[Array, "n B T D"], real: Bool[Array, "B T"]) -> Float[Array, "n"]:
    """Variance of each x over all entries of real tokens."""
    return jax.vmap(lambda x: variance(x, real))(x)


def branch_variance(activations: Observed) -> Float[Array, "n"]:
    """Var[branch] of each sublayer, over all entries: what Admin's omega sums up."""
    return variances(activations.branches, activations.real)


def numbered_texts(activations: Observed) -> tuple[Int[Array, "BT"], int]:
    """The number of each token's text in the batch, one also for each row's padding; how many
    numbers there may be."""
    rows, length = activations.segments.shape
    texts = activations.segments + (length + 1) * jnp.arange(rows)[:, None]
    return texts.reshape(-1), rows * (length + 1)


def token_similarity(activations: Observed) -> Float[Array, "n"]:
    """Mean cosine between different tokens of the same text, after each sublayer.

    It nears 1 where the stack's rank collapses (Dong et al. 2021, 2103.03404). The mean is over all
    pairs of the batch; NaN where there are none.
    """
    texts, total = numbered_texts(activations)
    counts = jax.ops.segment_sum(activations.real.reshape(-1).astype(jnp.float32), texts, total)
    pairs = jnp.sum(counts * (counts - 1))

    def mean_cosine(x):
        norms = jnp.linalg.norm(x, axis=-1, keepdims=True)
        units = jnp.where(activations.real[..., None], x / jnp.maximum(norms, 1e-30), 0.0)
        # |sum of u|^2 holds every ordered pair, and each token with itself.
        sums = jax.ops.segment_sum(units.reshape(texts.size, -1), texts, total)
        return (jnp.sum(jnp.square(sums)) - jnp.sum(jnp.square(units))) / pairs

    return jax.lax.map(mean_cosine, activations.outputs)


def mean_over_queries(activations: Observed, values: Float[Array, "L B H T"]) -> Float[Array, "L"]:
    """The mean of one of an attention's readings, such as its entropy, over heads and queries."""
    return jnp.mean(values, axis=(1, 2, 3), where=_queries(activations))


def largest_logit(activations: Observed, kind: Kind) -> Float[Array, "L"]:
    """The largest attention logit of all heads and queries."""
    logits = activations.largest_logit[kind]
    return jnp.max(logits, axis=(1, 2, 3), where=_queries(activations), initial=-jnp.inf)


def _queries(activations: Observed) -> Bool[Array, "1 B 1 T"]:
    return activations.real[None, :, None]
