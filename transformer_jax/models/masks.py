"""Attention masks: True where a query may look at a key."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(
    query_segment_ids: Int[Array, "B T"], key_segment_ids: Int[Array, "B S"]
) -> Bool[Array, "B T S"]:
    """Pairs of tokens of the same example; padding (segment 0) is seen by nobody.

    A padded query sees nothing at all: `attention` gives it a finite result that no loss reads.
    """
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return same & (key_segment_ids > 0)[:, None, :]


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """Each position sees itself and what came before."""
    position = jnp.arange(length)
    return position[:, None] >= position[None, :]
