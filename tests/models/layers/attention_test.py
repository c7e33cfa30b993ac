"""How an additive score and gates start, and the weights.

What attention computes is compared with NumPy in transformer/shapes_test.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.models.layers.attention import AdditiveScore, Attention
from transformer_jax.models.layers.attention_weights import ATTENTION_WEIGHTS
from transformer_jax.models.layers.masks import MASKED

B, T, S = 2, 5, 7


def test_the_additive_vector_is_drawn_as_a_kernel_of_one_output_for_each_head():
    """Xavier's variance 2 / (K + 1), however many heads there are."""
    heads, size = 32, 64
    module = AdditiveScore()
    zeros = jnp.zeros((1, 1, heads, size))
    draw = nn.unbox(module.init(jax.random.key(0), zeros, zeros)["params"])["vector"]
    # The squares of uniform draws deviate by 0.9 of their mean.
    deviation = 0.9 / math.sqrt(heads * size)
    np.testing.assert_allclose(np.var(draw), 2 / (size + 1), rtol=4 * deviation)


def _logits():
    """Of heads whose first query sees nothing, and others some of their keys; and the mask."""
    generator = np.random.default_rng(0)
    scores = generator.normal(0, 3, (B, 2, T, S)).astype(np.float32)
    mask = (generator.random((B, 1, T, S)) < 0.6) & (np.arange(T) > 0)[:, None]
    return jnp.where(mask, scores, MASKED), mask


def test_a_sink_of_minus_infinity_is_a_softmax_and_one_of_0_is_off_by_one():
    logits, _ = _logits()
    softmax, sink, off_by_one = (
        ATTENTION_WEIGHTS[name] for name in ("softmax", "sink", "off_by_one")
    )
    plain = softmax(logits)
    np.testing.assert_array_equal(plain, jax.nn.softmax(logits))
    np.testing.assert_array_equal(sink(logits, jnp.full(2, -np.inf))[:, :, 1:], plain[:, :, 1:])
    np.testing.assert_array_equal(sink(logits, jnp.zeros(2)), off_by_one(logits))
    # An added logit is one of each head's.
    weights = sink(logits, jnp.array([-np.inf, 0.0]))
    np.testing.assert_array_equal(weights[:, 0, 1:], plain[:, 0, 1:])
    np.testing.assert_array_equal(weights[:, 1], off_by_one(logits)[:, 1])


@pytest.mark.parametrize("name", ATTENTION_WEIGHTS)
def test_what_is_not_seen_has_no_weight_and_changes_none(name):
    """Neither by its score nor by how much of it there is; rows that see nothing stay finite."""
    logits, mask = _logits()
    weigh = functools.partial(ATTENTION_WEIGHTS[name], sink=jnp.ones(2))
    weights = np.asarray(weigh(logits))
    assert np.all(np.isfinite(weights)) and np.all(weights >= 0)
    assert not np.any(weights[:, :, 1:][~np.broadcast_to(mask, weights.shape)[:, :, 1:]])
    more = jnp.pad(logits, [(0, 0)] * 3 + [(0, 4)], constant_values=MASKED)
    np.testing.assert_allclose(weigh(more)[:, :, 1:, :S], weights[:, :, 1:], rtol=1e-6)
    # In two halves that belong together, as hypotheses of a beam
    even = jnp.pad(logits, [(0, 0)] * 3 + [(0, 1)], constant_values=MASKED)
    halves = jnp.moveaxis(even.reshape(B, 2, T, 2, -1), 3, 1)
    of_halves = jnp.moveaxis(weigh(halves, axis=(1, -1)), 1, 3).reshape(even.shape)
    np.testing.assert_allclose(of_halves[:, :, 1:, :S], weights[:, :, 1:], rtol=1e-6)
    sums = weights[:, :, 1:].sum(-1)
    assert np.allclose(sums, 1, rtol=1e-5) == (name == "softmax")


@pytest.mark.parametrize("gate", ["head", "entry"])
def test_a_gate_halves_what_attention_adds_at_first(gate):
    """To the bit, of self-attention and from a cache: all draws are those of the plain one."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(B, T, 16)), jnp.float32)
    mask = jnp.ones((B, T, T), bool)

    def attend(module):
        out = module(x, x, mask, deterministic=True)
        return out, module.cached(x, module.slots(x), mask)

    plain, gated = (Attention(tiny.config(attention_gate=name)) for name in ("none", gate))
    expected, actual = (
        nn.unbox(module.init_with_output(jax.random.key(0), method=attend))
        for module in (plain, gated)
    )
    for half, whole in zip(actual[0], expected[0], strict=True):
        np.testing.assert_array_equal(2 * half, whole)
    assert not np.any(actual[1]["params"].pop("gate"))
    jax.tree.map(np.testing.assert_array_equal, actual[1], expected[1])


def test_the_mass_of_an_added_logit_is_shown():
    """That of a softmax with one column more, for each query."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, 16)), jnp.float32)
    module = Attention(tiny.config(attention_weights="sink"))
    arguments = x, x, jnp.ones((B, T, T), bool)
    variables = nn.unbox(module.init(jax.random.key(0), *arguments, deterministic=True))
    w = variables["params"] | {"sink": jnp.array([0.5, -1.0])}
    apply = functools.partial(module.apply, deterministic=True, mutable=["intermediates"])
    outputs: Any = apply({"params": w}, *arguments)
    readings = outputs[1]["intermediates"]
    q, k = (np.einsum("BTD,DHK->BHTK", x, w[name]) for name in ("query", "key"))
    scores = q @ np.swapaxes(k, -1, -2) / 8**0.5
    column = np.broadcast_to(np.asarray(w["sink"])[:, None, None], (B, 2, T, 1))
    exact = jax.nn.softmax(np.concatenate([scores, column], -1))
    np.testing.assert_allclose(readings["weights"], exact[..., :-1], rtol=1e-4)
    np.testing.assert_allclose(1 - np.sum(readings["weights"], axis=-1), exact[..., -1], rtol=1e-4)
