"""What queries share keys and values, and how an additive score starts.

What attention computes is compared with NumPy in transformer/shapes_test and with the library in
contract_test.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.models.layers.attention import AdditiveScore, Attention

B, T, S = 2, 5, 7


@pytest.mark.parametrize("score", ["scaled_dot_product", "additive"])
def test_adjacent_queries_share_a_key_and_a_value(score):
    """Four heads of two keys and values are four of their own, two and two the same: at once, and
    from a cache."""
    generator = np.random.default_rng(0)
    x, y = (jnp.asarray(generator.normal(size=(B, n, 16)), jnp.float32) for n in (T, S))
    mask = jnp.asarray(generator.random((B, T, S)) < 0.5).at[:, :, 0].set(True)

    def attend(module):
        return module(x, y, mask, deterministic=True)

    def cached(module):
        return module.cached(x, module.slots(y), mask)

    own, grouped = (
        Attention(tiny.config(num_heads=4, head_dim=4, num_kv_heads=count, attention_score=score))
        for count in (None, 2)
    )
    variables = jax.eval_shape(lambda: grouped.init(jax.random.key(0), method=attend))
    params = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(0, 0.5, leaf.shape), jnp.float32),
        nn.unbox(variables)["params"],
    )
    assert params["key"].shape == (16, 2, 4) and params["value_bias"].shape == (2, 4)
    repeated = params | {
        name: jnp.repeat(params[name], 2, axis=axis)
        for name, axis in (("key", 1), ("value", 1), ("value_bias", 0))
    }
    expected, *others = (
        np.asarray(module.apply({"params": w}, method=method))
        for module, w in ((own, repeated), (grouped, params))
        for method in (attend, cached)
    )
    for found in others:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_additive_vector_is_drawn_as_a_kernel_of_one_output_for_each_head():
    """Xavier's variance 2 / (K + 1), however many heads there are."""
    heads, size = 32, 64
    module = AdditiveScore()
    zeros = jnp.zeros((1, 1, heads, size))
    draw = nn.unbox(module.init(jax.random.key(0), zeros, zeros)["params"])["vector"]
    # The squares of uniform draws deviate by 0.9 of their mean.
    deviation = 0.9 / math.sqrt(heads * size)
    np.testing.assert_allclose(np.var(draw), 2 / (size + 1), rtol=4 * deviation)
