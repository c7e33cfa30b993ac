"""Dropout that draws 16 random bits an entry."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Dropout(nn.Module):
    """Zeroes entries with probability `rate` and scales the others by 1 / (1 - rate).

    Random bits cost as much as matrix products on a CPU, so one 32-bit word serves two entries. The
    rate is thereby rounded to a multiple of 2^-16, and the scale uses the rounded rate, so that the
    expectation is exact. Draws depend on the module's path alone: two schemes with the same
    sublayers drop the same entries.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*shape"], *, deterministic: bool) -> Float[Array, "*shape"]:
        threshold = round(self.rate * 2**16)
        if deterministic or threshold == 0:
            return x
        pairs = (*x.shape[:-1], -(-x.shape[-1] // 2))
        words = jax.random.bits(self.make_rng("dropout"), pairs, jnp.uint32)
        halves = jax.lax.bitcast_convert_type(words, jnp.uint16)
        bits = halves.reshape(*x.shape[:-1], 2 * pairs[-1])[..., : x.shape[-1]]
        return jnp.where(bits >= threshold, x / (1.0 - threshold / 2**16), 0.0).astype(x.dtype)
