"""Attention by plain products, which hold the weights of all pairs; XLA fuses what it can."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.layers.stack import keep

# (queries, keys, mask) -> attention weights (B, H, T, S), after dropout
Weights = Callable[..., Float[Array, "B H T S"]]


def attend(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    mask: Bool[Array, "#B #T S"],
    weights: Weights,
) -> Float[Array, "B T H K"]:
    """The values' mean under `weights`."""
    return keep(jnp.einsum("BHTS,BSHK->BTHK", weights(queries, keys, mask), values), "heads")
