"""The norms against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import reference, tiny
from transformer_jax.models.layers.norm import NORMS, Norm


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_norm_keeps_its_digits_where_the_mean_is_large(kind, offset):
    """Float32 holds 1000 + x to 6e-5, so that is what may be lost; E[x^2] - E[x]^2 would lose all
    but the first digit of the variance."""
    generator = np.random.default_rng(0)
    x = (offset + generator.normal(size=(2, 3, 16))).astype(np.float32)
    scale, bias = generator.normal(size=(2, 16)).astype(np.float32)
    params = {"scale": scale} if kind != "layer_norm_plain" else {}
    params |= {"bias": bias} if kind in ("layer_norm", "dyt", "derf") else {}
    params |= {"alpha": np.float32(0.25)} if kind in ("dyt", "derf") else {}
    params |= {"shift": np.float32(0.5)} if kind == "derf" else {}
    config = tiny.config(norm=kind, norm_epsilon=1e-5)
    exact = reference.normalise(params, np.float64(x).reshape(-1, 16), config).reshape(x.shape)
    actual = Norm(kind, 1e-5).apply({"params": params}, jnp.asarray(x))
    np.testing.assert_allclose(
        np.asarray(actual), exact, rtol=1e-5, atol=1e-5 if offset == 0 else 1e-3
    )


def test_what_stands_in_for_a_norm_starts_from_its_papers_numbers():
    for kind, numbers in (("dyt", {"alpha": 0.5}), ("derf", {"alpha": 0.5, "shift": 0.0})):
        params = nn.unbox(Norm(kind, 1e-5).init(jax.random.key(0), jnp.ones((2, 4)))["params"])
        assert {name: float(params[name]) for name in numbers} == numbers
