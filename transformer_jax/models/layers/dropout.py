"""Dropout whose masks cost little to draw, and are drawn again rather than kept."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32


class Dropout(nn.Module):
    """Zeroes entries with probability `rate` and scales the others by 1 / (1 - rate).

    The rate is rounded to a multiple of 2^-32, and the scale uses the rounded rate. Draws depend on
    the module's path alone: two schemes with the same sublayers drop the same entries. The backward
    pass draws the mask again from two words a row, so that nothing as large as x is kept for it.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"], *, deterministic: bool) -> Float[Array, "*shape"]:
        threshold = round(self.rate * 2**32)
        if deterministic or threshold == 0:
            return x
        words = jax.random.bits(self.make_rng("dropout"), (*x.shape[:-1], 2), jnp.uint32)
        # A scan keeps forward and backward pass apart by itself.
        return jax.checkpoint(functools.partial(_drop, threshold), prevent_cse=False)(x, words)


def _drop(
    threshold: int, x: Float[Array, "*rows D"], words: UInt32[Array, "*rows 2"]
) -> Float[Array, "*rows D"]:
    bits = noise(words, x.shape[-1])
    mask = bits >= jnp.uint32(threshold)
    return jnp.where(mask, x * (1.0 / (1.0 - threshold / 2**32)), 0.0).astype(x.dtype)


def noise(words: UInt32[Array, "*rows 2"], width: int) -> UInt32[Array, "*rows width"]:
    """32 bits for each entry of a row, by a hash of its number and of the row's two random words.

    The generator of the words takes six times as many operations, which on a CPU cost as much as
    matrix products do. The hash is lowbias32 (C. Wellons 2018, "Prospecting for hash functions"),
    into which the second word enters half-way, so that no two rows have parts of one sequence.
    """
    x = words[..., :1] + jax.lax.iota(jnp.uint32, width).reshape((1,) * (words.ndim - 1) + (-1,))
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D) ^ words[..., 1:]
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
