"""The variance that Admin measures; the residual equation itself is tested in shapes_test."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.models.transformer.residual import variance


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
