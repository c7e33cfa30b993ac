"""Attention against the library's kernel, and what masks and constants may and may not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.models.attention import Attention

B, T, S = 2, 5, 7


def attend(module, x, y, mask):
    return module(x, *module.keys_values(y), mask, deterministic=True)


@pytest.fixture(scope="module")
def case():
    """An Attention of 3 heads of 4 in a d_model of 16, random values for all of its inputs."""
    generator = np.random.default_rng(0)
    x, y = (jnp.asarray(generator.normal(size=(B, n, 16)), jnp.float32) for n in (T, S))
    mask = jnp.asarray(generator.random((B, T, S)) < 0.5).at[:, :, 0].set(True)
    module = Attention(tiny.config(num_heads=3, head_dim=4))
    shapes = nn.unbox(jax.eval_shape(
        lambda: module.init(jax.random.key(0), x, y, mask, method=attend)["params"]))  # fmt: skip
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32), shapes
    )
    return module, params, x, y, mask


def test_equals_the_library(case):
    module, params, x, y, mask = case
    q = jnp.einsum("BTD,DHK->BTHK", x, params["query"]) + params["query_bias"][None, None]
    k = jnp.einsum("BSD,DHK->BSHK", y, params["key"])
    v = jnp.einsum("BSD,DHK->BSHK", y, params["value"]) + params["value_bias"][None, None]
    heads = jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])
    expected = (
        jnp.einsum("BTHK,HKD->BTD", heads, params["output"]) + params["output_bias"][None, None]
    )
    actual = module.apply({"params": params}, x, y, mask, method=attend)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_masked_key_changes_no_bit(case):
    module, params, x, y, mask = case
    mask = mask.at[:, :, 3].set(False)
    for other in (y.at[:, 3].set(1e6), y.at[:, 3].set(0.0)):
        before, after = (
            module.apply({"params": params}, x, keys, mask, method=attend) for keys in (y, other)
        )
        np.testing.assert_array_equal(before, after)


def test_a_query_that_sees_nothing_gives_finite_numbers_and_gradients(case):
    module, params, x, y, mask = case
    mask = mask.at[0].set(False)

    def total(params, x, y):
        return jnp.sum(module.apply({"params": params}, x, y, mask, method=attend) ** 2)

    value, gradients = tiny.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(params, x, y)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((value, gradients)))


def test_the_softmax_cancels_a_key_bias(case):
    """Why keys have none: the same vector added to every key changes no weight."""
    module, params, x, y, mask = case

    def attend_with_bias(module, bias):
        keys, values = module.keys_values(y)
        return module(x, keys + bias[None, None], values, mask, deterministic=True)

    bias = jnp.asarray(np.random.default_rng(2).normal(size=(3, 4)), jnp.float32)
    plain, biased = (
        module.apply({"params": params}, b, method=attend_with_bias) for b in (0 * bias, bias)
    )
    np.testing.assert_allclose(plain, biased, rtol=1e-5, atol=1e-5)
