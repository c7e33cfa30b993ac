"""Rotary positions are rounded once. Relative ones: buckets, and which key has which distance.

What attention makes of positions is compared with NumPy in transformer/shapes_test.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from transformer_jax.models.layers.positions import RelativeBias, buckets, rotate, rotation, skew


def test_turning_in_bfloat16_is_rounded_once():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, 3, 10)), jnp.bfloat16)
    turn = rotation(jnp.broadcast_to(jnp.arange(12), (2, 12)), 10)
    turned = rotate(x, turn)
    assert turned.dtype == jnp.bfloat16
    exact = rotate(x.astype(jnp.float32), turn)
    np.testing.assert_array_equal(turned, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_those_of_t5(bidirectional):
    """The published formula, place by place; every bucket has a distance, and its own side."""
    distances = np.arange(-600, 601)
    found = np.asarray(buckets(jnp.asarray(distances), bidirectional=bidirectional))
    expected = [reference.bucket(int(d), bidirectional) for d in distances]
    np.testing.assert_array_equal(found, expected)
    # Of keys after the query, those of 0 are not there: a distance of 0 is not behind.
    assert set(found.tolist()) == set(range(32)) - ({16} if bidirectional else set())


def test_skewing_gives_each_key_its_distance():
    queries, keys = 4, 7
    x = np.random.default_rng(0).normal(size=(2, queries, queries + keys - 1)).astype(np.float32)
    found = skew(jnp.asarray(x))
    assert found.shape == (2, queries, keys)
    for t in range(queries):
        for s in range(keys):
            np.testing.assert_array_equal(found[:, t, s], x[:, t, s - t + queries - 1])


def test_a_bias_follows_the_distance_from_whatever_place_queries_start():
    """The last queries of a whole row have what they have when they come alone, as in a cache."""
    module = RelativeBias(tiny.config(num_heads=3, d_model=6), causal=True)
    params = nn.unbox(module.init(jax.random.key(0), 9, 9))
    whole = np.asarray(module.apply(params, 9, 9))
    table = np.asarray(params["params"]["table"])
    for t in range(9):
        expected = table[[reference.bucket(s - t, False) for s in range(9)]]
        np.testing.assert_array_equal(whole[0, :, t], expected.T)
    alone = np.asarray(module.apply(params, 2, 9, jnp.int32(7)))
    np.testing.assert_array_equal(alone, whole[:, :, 7:])
