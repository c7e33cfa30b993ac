"""Numbers that are kept below a bound, smoothly."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def soft_cap(x: Float[Array, "*shape"], cap: float | None) -> Float[Array, "*shape"]:
    """c tanh(x / c), of which no size exceeds c (Gemma 2, 2408.00118, section 2); None: x."""
    return x if cap is None else cap * jnp.tanh(x / cap)
