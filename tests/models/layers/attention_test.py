"""How an additive score and gates start, and what is shown of an added logit.

What attention computes is compared with NumPy in transformer/shapes_test, and in decoding_test with
what it computes from a cache.
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

B, T = 2, 5


def test_the_additive_vector_is_drawn_as_a_kernel_of_one_output_for_each_head():
    """Xavier's variance 2 / (K + 1), however many heads there are."""
    heads, size = 32, 64
    module = AdditiveScore()
    zeros = jnp.zeros((1, 1, heads, size))
    draw = nn.unbox(module.init(jax.random.key(0), zeros, zeros)["params"])["vector"]
    # The squares of uniform draws deviate by 0.9 of their mean.
    deviation = 0.9 / math.sqrt(heads * size)
    np.testing.assert_allclose(np.var(draw), 2 / (size + 1), rtol=4 * deviation)


def test_an_added_logit_of_another_shape_is_refused():
    """One number would be broadcast to all heads."""
    arguments = *jnp.ones((2, B, T, 16)), jnp.ones((B, T, T), bool)
    module = Attention(tiny.config(attention_weights="sink"))
    w = nn.unbox(module.init(jax.random.key(0), *arguments, deterministic=True))["params"]
    with pytest.raises(ValueError, match=r"sink is of shape \(1,\), expected \(2,\)"):
        module.apply({"params": w | {"sink": jnp.ones(1)}}, *arguments, deterministic=True)


@pytest.mark.parametrize("name", ["sigmoid", "relu"])
def test_weights_without_a_softmax_are_shown_as_shares(name):
    """Of their sum, and likewise their entropy; of a query without any weight both are 0."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, 16)), jnp.float32)
    module, visible = Attention(tiny.config(attention_weights=name)), jnp.ones((B, T, T), bool)
    variables = nn.unbox(module.init(jax.random.key(0), x, x, visible, deterministic=True))
    w = variables["params"]
    mask = visible.at[:, 0].set(False)
    outputs: Any = module.apply(
        {"params": w}, x, x, mask, deterministic=True, mutable=["intermediates"]
    )
    readings = outputs[1]["intermediates"]
    q, k = (np.einsum("BTD,DHK->BHTK", x, w[name]) for name in ("query", "key"))
    scores = q @ np.swapaxes(k, -1, -2) / 8**0.5
    raw = 1 / (1 + T * np.exp(-scores)) if name == "sigmoid" else np.maximum(scores, 0) / T
    raw[:, :, 0] = 0
    total = raw.sum(-1, keepdims=True)
    exact = np.divide(raw, total, out=np.zeros_like(raw), where=total > 0)
    np.testing.assert_allclose(readings["weights"], exact, rtol=1e-4, atol=1e-6)
    logs = np.log(exact, out=np.zeros_like(exact), where=exact > 0)
    np.testing.assert_allclose(readings["entropy"], -(exact * logs).sum(-1), rtol=1e-3, atol=1e-5)


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
