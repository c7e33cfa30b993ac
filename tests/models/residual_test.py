"""The residual equation, its table of schemes, the norm and the variance that Admin measures."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.config import Residual
from transformer_jax.models.residual import SCHEMES, Norm, variance


def test_the_table_has_a_row_for_every_scheme():
    assert SCHEMES.keys() == set(get_args(Residual)) == set(tiny.SCHEMES)


def test_admin_is_post_ln_with_a_profiled_shortcut():
    post_ln, admin = SCHEMES["post_ln"], SCHEMES["admin"]
    assert (admin.pre_norm, admin.post_norm, admin.final_norm) == (
        post_ln.pre_norm, post_ln.post_norm, post_ln.final_norm)  # fmt: skip
    assert admin.profiled_omega and not post_ln.profiled_omega


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_norm_keeps_its_digits_where_the_mean_is_large(kind, offset):
    """Float32 holds 1000 + x to 6e-5, so that is what may be lost; E[x^2] - E[x]^2 would lose all
    but the first digit of the variance."""
    generator = np.random.default_rng(0)
    x = (offset + generator.normal(size=(2, 3, 16))).astype(np.float32)
    scale, bias = generator.normal(size=(2, 16)).astype(np.float32)
    exact = x.astype(np.float64)
    if kind == "layer_norm":
        exact = exact - exact.mean(-1, keepdims=True)
    exact = exact / np.sqrt(np.mean(exact**2, -1, keepdims=True) + 1e-5) * scale
    params = {"scale": scale}
    if kind == "layer_norm":
        exact, params["bias"] = exact + bias, bias
    actual = Norm(tiny.config(norm=kind)).apply({"params": params}, jnp.asarray(x))
    np.testing.assert_allclose(
        np.asarray(actual), exact, rtol=1e-5, atol=1e-5 if offset == 0 else 1e-3
    )


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_variance_is_numpys_over_the_entries_of_real_tokens(offset):
    generator = np.random.default_rng(0)
    x = (offset + generator.normal(size=(3, 5, 16))).astype(np.float32)
    real = generator.random((3, 5)) < 0.6
    assert 0 < real.sum() < real.size
    expected = np.var(x[real].astype(np.float64))
    np.testing.assert_allclose(variance(jnp.asarray(x), jnp.asarray(real)), expected, rtol=1e-5)
    polluted = jnp.asarray(np.where(real[..., None], x, np.nan))
    np.testing.assert_allclose(variance(polluted, jnp.asarray(real)), expected, rtol=1e-5)
