"""Where tokens look, in models of any family, and the same model without some of its heads."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.schemes import Kind, Stack


class Looks(NamedTuple):
    """What one kind of attention of a stack did in every layer and head.

    Attributes:
      weights: the share of each query's weight that each key has (`AttentionWeights.shares`); 0
        where it does not see it. Keys of a model with memory are the places of the memory, and then
        those of the row.
      entropy: of each query's weights, in nats.
      largest_logit: of each query; None where the model does not show it.
    """

    weights: Float[Array, "L B H T S"]
    entropy: Float[Array, "L B H T"]
    largest_logit: Float[Array, "L B H T"] | None


def attention(
    model: Model, params: Params, batch: Batch, memory: Any = ()
) -> tuple[Float[Array, "B T _"], dict[tuple[Stack, Kind], Looks], Any]:
    """One pass without dropout: the logits, where tokens looked, and the memory after the batch.

    Models without attention have no looks. Kernels that hold no weights make place for the plain
    one, which computes the same.

    memory: what the model kept of the batch before, as `Family.memory` describes it.
    """
    model = model.clone(config=model.config.plain())
    logits, collections = model.apply(
        {"params": params, "memory": memory} if memory else {"params": params},
        batch,
        deterministic=True,
        mutable=["intermediates", "memory"],
    )
    looks = {}
    for stack in ("encoder", "decoder"):
        inside = collections.get("intermediates", {}).get(stack, {})
        numbered = sorted(inside, key=lambda name: (len(name), name))  # the tenth after the second
        for kind in ("self_attention", "cross_attention"):
            if kind in inside:
                looks[stack, kind] = Looks(
                    *(inside[kind][name] for name in ("weights", "entropy", "largest_logit"))
                )
            # Recurrent layers are modules of their own, which have one head.
            elif layers := [inside[name][kind] for name in numbered if kind in inside[name]]:
                weights = jnp.stack(layers)
                entropy = jnp.sum(jax.scipy.special.entr(weights), axis=-1)
                looks[stack, kind] = Looks(weights, entropy, None)
    return logits, looks, collections.get("memory", ())


def without_heads(
    params: Params, stack: Stack, kind: Kind, heads: Iterable[tuple[int, int]]
) -> Params:
    """The parameters of a Transformer whose heads (layer, head), from 0, add nothing.

    A head's results are multiplied by zeros in place of its part of the output kernel. The biases
    and all other heads stay. Raises ValueError where there is no such head, or no such attention.
    """
    if kind not in params.get(stack, {}) or "output" not in params[stack][kind]:
        raise ValueError(f"the model has no {stack}/{kind} with heads to take out")
    kernel = params[stack][kind]["output"]
    for layer, head in heads:
        layers, number = kernel.shape[:2]
        if not (0 <= layer < layers and 0 <= head < number):
            raise ValueError(
                f"there is no head {head} in layer {layer} of {stack}/{kind}, which has {layers} "
                f"layers of {number} heads, counted from 0"
            )
        kernel = jnp.asarray(kernel).at[layer, head].set(0.0)
    changed = params[stack] | {kind: params[stack][kind] | {"output": kernel}}
    return params | {stack: changed}
