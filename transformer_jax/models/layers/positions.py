"""Rotary positions: queries and keys turned by angles that grow with the position."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each position and pair of channels."""

    cos: Float[Array, "B T half_K"]
    sin: Float[Array, "B T half_K"]


def rotation(positions: Int[Array, "B T"], head_dim: int) -> Rotation:
    """Angles t / 10000^(2i/K) of position t and pair i (Su et al. 2021, 2104.09864, eq. 15)."""
    frequencies = 10000.0 ** (-jnp.arange(0, head_dim, 2) / head_dim)
    angles = positions[..., None] * frequencies[None, None]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B T H K"], rotation: Rotation | None) -> Float[Array, "B T H K"]:
    """Turns each pair of channels (i, i + K/2), in float32; None turns nothing.

    So the product of a query and a key depends on the difference of their positions alone. The
    paper pairs neighbouring channels, which is the same up to the order of the channels.
    """
    if rotation is None:
        return x
    cos, sin = (part[:, :, None] for part in rotation)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
