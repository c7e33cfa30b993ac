"""Rotary positions are rounded once, and relative ones have the buckets of T5.

What attention makes of positions is compared with NumPy in transformer/shapes_test.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference
from transformer_jax.models.layers.positions import buckets, rotate, rotation


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
