"""The residual equation, its table of schemes and the variance that Admin measures."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.config import Residual
from transformer_jax.models.residual import SCHEMES, variance


def test_the_table_has_a_row_for_every_scheme():
    assert SCHEMES.keys() == set(get_args(Residual)) == set(tiny.SCHEMES)


def test_admin_is_post_ln_with_a_profiled_shortcut():
    post_ln, admin = SCHEMES["post_ln"], SCHEMES["admin"]
    assert (admin.pre_norm, admin.post_norm, admin.final_norm) == (
        post_ln.pre_norm, post_ln.post_norm, post_ln.final_norm)  # fmt: skip
    assert admin.profiled_omega and not post_ln.profiled_omega


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
