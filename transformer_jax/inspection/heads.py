"""Where the heads of self-attention put their weight: on sinks, copies, what followed copies.

Each is a share of a query's weight, the mean over the queries that have such a key, by layer and
head; NaN where none has. A text's tokens are those that its stack reads.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.inspection.observed import Observed, mean_over_queries, numbered_texts
from transformer_jax.inspection.stream import starts
from transformer_jax.models.family import Batch
from transformer_jax.models.layers.embeddings import shift_right
from transformer_jax.models.transformer.schemes import Kind, Stack

# The share of its weight on the first token from which on a head has a sink there (Gu et al. 2024,
# 2410.10781, section 3.1).
SINK = 0.3


def read_tokens(batch: Batch, stack: Stack) -> Int[Array, "B T"]:
    """The tokens that a stack reads; -1 is what stands before a decoder's first one.

    Raises KeyError where it reads none: of images an encoder has pixels, a decoder has queries.
    """
    if "grid" in batch:
        raise KeyError(f"the {stack} reads no tokens")
    if stack == "encoder":
        return batch["inputs"]
    return shift_right(batch["targets"], batch["targets_positions"], -1)


def weight_on(activations: Observed, keys: Bool[Array, "B T S"]) -> Float[Array, "L H"]:
    """The weight of queries on keys of their own text, such as a function below names."""
    keys = keys & _own_text(activations)
    weights = _of_each(activations, keys)
    return jnp.mean(weights, axis=(1, 3), where=jnp.any(keys, axis=-1)[None, :, None])


def sink_mass(activations: Observed) -> Float[Array, "L H"]:
    """The weight on the first token of the text, of the tokens after it (Xiao et al. 2023,
    2309.17453)."""
    return weight_on(activations, _first(activations))


def sink_rate(activations: Observed) -> Float[Array, "L"]:
    """The share of a layer's heads and of the texts with a `sink_mass` above SINK (Gu et al. 2024).

    Theirs is of texts of 64 tokens: a uniform weight alone has a mean of ln T / T or so.
    """
    keys = _first(activations) & _own_text(activations)
    queries = jnp.any(keys, axis=-1)
    texts, total = numbered_texts(activations)
    counts = jax.ops.segment_sum(queries.reshape(-1).astype(jnp.float32), texts, total)

    def means(weights: Float[Array, "B T"]) -> Float[Array, "n"]:
        masses = jnp.where(queries, weights, 0.0).reshape(-1)
        return jax.ops.segment_sum(masses, texts, total) / jnp.maximum(counts, 1)

    by_head = jnp.swapaxes(_of_each(activations, keys), 1, 2)  # (L, H, B, T)
    sinks = jax.vmap(jax.vmap(means))(by_head) > SINK
    return jnp.mean(sinks, axis=(1, 2), where=counts > 0)


def previous_token(activations: Observed) -> Float[Array, "L H"]:
    """The weight on the token before."""
    length = activations.segments.shape[1]
    return weight_on(activations, jnp.eye(length, k=-1, dtype=bool)[None])


def duplicate_token(activations: Observed, tokens: Int[Array, "B T"]) -> Float[Array, "L H"]:
    """The weight on earlier copies of a query's own token."""
    return weight_on(activations, _copies(activations, tokens))


def prefix_match(activations: Observed, tokens: Int[Array, "B T"]) -> Float[Array, "L H"]:
    """The weight on what followed earlier copies of a query's own token: that of an induction head
    (Olsson et al. 2022, 2209.11895)."""
    copies = _copies(activations, tokens)
    return weight_on(activations, jnp.pad(copies, ((0, 0), (0, 0), (1, 0)))[..., :-1])


def off_by_one_mass(activations: Observed, kind: Kind) -> Float[Array, "L"]:
    """The share of a softmax that an added logit has (`layers.attention_weights`), the mean over
    queries and heads: what weights lack of 1."""
    return mean_over_queries(activations, 1 - jnp.sum(activations.weights[kind], axis=-1))


def value_ratio(activations: Observed) -> Float[Array, "L H"]:
    """The mean norm of values at the first tokens of texts over that at all others: below 1 where
    what a sink has is drained (Guo et al. 2024, 2410.13835)."""
    norms, first = activations.value_norm["self_attention"], starts(activations)
    norms = jnp.swapaxes(norms[..., -first.shape[1] :], 1, 2)  # (L, H, B, S)
    sizes = [
        jnp.mean(norms, axis=(2, 3), where=at[None, None])
        for at in (first, activations.real & ~first)
    ]
    return sizes[0] / sizes[1]


def _copies(activations: Observed, tokens: Int[Array, "B T"]) -> Bool[Array, "B T S"]:
    length = tokens.shape[1]
    earlier = jnp.tri(length, k=-1, dtype=bool)[None]
    return (tokens[:, :, None] == tokens[:, None]) & earlier & _own_text(activations)


def _first(activations: Observed) -> Bool[Array, "B T S"]:
    """The first key of each query's text, of the queries after it."""
    first = starts(activations)
    return first[:, None] & ~first[:, :, None]


def _own_text(activations: Observed) -> Bool[Array, "B T S"]:
    same = activations.segments[:, :, None] == activations.segments[:, None]
    return same & activations.real[:, None]


def _of_each(activations: Observed, keys: Bool[Array, "B T S"]) -> Float[Array, "L B H T"]:
    """Each query's weight on some keys of its row; those of a memory come before."""
    weights = activations.weights["self_attention"][..., -keys.shape[-1] :]
    return jnp.sum(weights, axis=-1, where=keys[None, :, None])
