"""The norms against float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.layers.norm import NORMS, Norm


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_norm_keeps_its_digits_where_the_mean_is_large(kind, offset):
    """Float32 holds 1000 + x to 6e-5, so that is what may be lost; E[x^2] - E[x]^2 would lose all
    but the first digit of the variance."""
    generator = np.random.default_rng(0)
    x = (offset + generator.normal(size=(2, 3, 16))).astype(np.float32)
    scale, bias = generator.normal(size=(2, 16)).astype(np.float32)
    exact = x.astype(np.float64)
    if kind != "rms_norm":
        exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt(np.mean(exact**2, -1, keepdims=True) + 1e-5)
    params = {}
    if kind != "layer_norm_plain":
        exact, params["scale"] = exact * scale, scale
    if kind == "layer_norm":
        exact, params["bias"] = exact + bias, bias
    actual = Norm(kind, 1e-5).apply({"params": params}, jnp.asarray(x))
    np.testing.assert_allclose(
        np.asarray(actual), exact, rtol=1e-5, atol=1e-5 if offset == 0 else 1e-3
    )
