"""Attention against the library's kernel, and what masks and constants may and may not change."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.models.layers.attention import AdditiveScore, Attention

B, T, S = 2, 5, 7


def attention(**changes):
    """3 heads of 4 in a d_model of 16."""
    return Attention(d_model=16, num_heads=3, head_dim=4, dtype=jnp.dtype("float32"), **changes)


def attend(module, x, y, mask):
    return module(x, y, mask, deterministic=True)


def apply(module, params, x, y, mask):
    return np.asarray(module.apply({"params": params}, x, y, mask, method=attend))


def parameters(module, x, y, mask):
    """Random ones for every leaf."""
    shapes = nn.unbox(jax.eval_shape(
        lambda: module.init(jax.random.key(0), x, y, mask, method=attend)["params"]))  # fmt: skip
    generator = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32), shapes
    )


@pytest.fixture(scope="module")
def case():
    """An Attention, and random values for all of its inputs."""
    generator = np.random.default_rng(0)
    x, y = (jnp.asarray(generator.normal(size=(B, n, 16)), jnp.float32) for n in (T, S))
    mask = jnp.asarray(generator.random((B, T, S)) < 0.5).at[:, :, 0].set(True)
    module = attention()
    return module, parameters(module, x, y, mask), x, y, mask


def test_equals_the_library(case):
    module, params, x, y, mask = case
    q = jnp.einsum("BTD,DHK->BTHK", x, params["query"]) + params["query_bias"][None, None]
    k = jnp.einsum("BSD,DHK->BSHK", y, params["key"])
    v = jnp.einsum("BSD,DHK->BSHK", y, params["value"]) + params["value_bias"][None, None]
    heads = jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])
    expected = (
        jnp.einsum("BTHK,HKD->BTD", heads, params["output"]) + params["output_bias"][None, None]
    )
    actual = apply(module, params, x, y, mask)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot_product", "dot_product", "additive"])
def test_scores_equal_a_slow_loop(case, score, qk_norm):
    """Over examples, heads, queries and the keys that each sees. With `qk_norm` queries and keys
    are centred and brought to unit variance, and then scaled, before they meet."""
    _, _, x, y, mask = case
    module = attention(score=score, qk_norm=qk_norm)
    params = parameters(module, x, y, mask)
    assert ("query_norm" in params) == qk_norm and ("score" in params) == (score == "additive")
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x64, y64 = np.asarray(x, np.float64), np.asarray(y, np.float64)

    def normalised(vector, name):
        if not qk_norm:
            return vector
        vector = vector - vector.mean()
        return vector / math.sqrt(np.mean(vector**2) + 1e-5) * w[name]["scale"]

    expected = np.zeros(x.shape)
    for b, t, h in np.ndindex(B, T, 3):
        q = normalised(x64[b, t] @ w["query"][:, h] + w["query_bias"][h], "query_norm")
        scores, values = [], []
        for s in np.nonzero(np.asarray(mask[b, t]))[0]:
            k = normalised(y64[b, s] @ w["key"][:, h], "key_norm")
            values.append(y64[b, s] @ w["value"][:, h] + w["value_bias"][h])
            if score == "additive":
                scores.append(
                    sum(w["score"]["vector"][h, i] * math.tanh(q[i] + k[i]) for i in range(4))
                )
            else:
                scores.append(q @ k / (2.0 if score == "scaled_dot_product" else 1.0))
        weights = np.exp(np.array(scores) - max(scores))
        expected[b, t] += (weights / weights.sum()) @ np.array(values) @ w["output"][h]
    actual = apply(module, params, x, y, mask)
    np.testing.assert_allclose(actual, expected + w["output_bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score", ["scaled_dot_product", "additive"])
def test_adjacent_queries_share_a_key_and_a_value(case, score):
    """Four heads of two keys and values are four of their own, two and two the same."""
    _, _, x, y, mask = case
    own, grouped = (
        Attention(16, 4, 4, jnp.dtype("float32"), num_kv_heads=count, score=score)
        for count in (None, 2)
    )
    params = parameters(grouped, x, y, mask)
    assert params["key"].shape == (16, 2, 4) and params["value_bias"].shape == (2, 4)
    repeated = params | {
        name: jnp.repeat(params[name], 2, axis=axis)
        for name, axis in (("key", 1), ("value", 1), ("value_bias", 0))
    }
    expected = apply(own, repeated, x, y, mask)
    np.testing.assert_allclose(apply(grouped, params, x, y, mask), expected, rtol=1e-5, atol=1e-5)

    def cached(module, x, y, mask):
        return module.cached(x, module.slots(y), mask)

    for module, w in ((own, repeated), (grouped, params)):
        actual = np.asarray(module.apply({"params": w}, x, y, mask, method=cached))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_without_the_root_of_the_head_size_queries_count_twice_as_much(case):
    """At a head size of 4, whose root is 2."""
    module, params, x, y, mask = case
    plain = attention(score="dot_product")
    doubled = params | {name: 2 * params[name] for name in ("query", "query_bias")}
    expected = apply(plain, params, x, y, mask)
    found = apply(module, doubled, x, y, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert not np.allclose(apply(module, params, x, y, mask), expected)


def test_the_additive_vector_is_drawn_as_a_kernel_of_one_output_for_each_head():
    """Xavier's variance 2 / (K + 1), however many heads there are."""
    heads, size = 32, 64
    module = AdditiveScore()
    zeros = jnp.zeros((1, 1, heads, size))
    draw = nn.unbox(module.init(jax.random.key(0), zeros, zeros)["params"])["vector"]
    # The squares of uniform draws deviate by 0.9 of their mean.
    deviation = 0.9 / math.sqrt(heads * size)
    np.testing.assert_allclose(np.var(draw), 2 / (size + 1), rtol=4 * deviation)


def test_normalised_queries_and_keys_do_not_see_how_large_their_kernels_are(case):
    _, _, x, y, mask = case
    module = attention(qk_norm=True)
    params = parameters(module, x, y, mask)
    larger = params | {name: 10 * params[name] for name in ("query", "query_bias", "key")}
    expected, found = (apply(module, p, x, y, mask) for p in (params, larger))
    # But for the epsilon of the norm.
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_a_masked_key_changes_no_bit(case):
    module, params, x, y, mask = case
    mask = mask.at[:, :, 3].set(False)
    for other in (y.at[:, 3].set(1e6), y.at[:, 3].set(0.0)):
        before, after = (apply(module, params, x, keys, mask) for keys in (y, other))
        np.testing.assert_array_equal(before, after)


def test_a_query_that_sees_nothing_gives_finite_numbers_and_gradients(case):
    module, params, x, y, mask = case
    mask = mask.at[0].set(False)

    def total(params, x, y):
        return jnp.sum(module.apply({"params": params}, x, y, mask, method=attend) ** 2)

    value, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(params, x, y)
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
