import math

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers.feed_forward import gelu


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.float32, 2**-23), (jnp.bfloat16, 2**-8)])
def test_gelu_is_x_times_the_normal_distribution_function(dtype, rounding):
    x = np.asarray(jnp.linspace(-6, 6, 2001).astype(dtype), np.float64)
    exact = x * np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2)(x)
    ours = np.asarray(gelu(jnp.asarray(x, dtype)), np.float64)
    # Where the distribution function is near 0, what rounds is 1 + erf, in float32 in any dtype.
    np.testing.assert_allclose(ours, exact, rtol=rounding, atol=6 * 2**-23)
