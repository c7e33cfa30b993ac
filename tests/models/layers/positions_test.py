"""Rotary positions: what turning keeps, and what products see of it. Relative ones: buckets."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference
from transformer_jax.models.layers.positions import RelativeBias, buckets, rotate, rotation, skew

B, T, H, K = 2, 12, 3, 10


def draw(seed, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(B, T, H, K)), dtype)


def positions(first=0):
    return jnp.broadcast_to(first + jnp.arange(T), (B, T))


def test_turning_equals_products_of_complex_numbers():
    x = draw(0)
    turned = rotate(x, rotation(positions(), K))
    for b in range(B):
        for h in range(H):
            expected = reference.turn(np.asarray(x[b, :, h], np.float64))
            np.testing.assert_allclose(turned[b, :, h], expected, rtol=1e-5, atol=1e-5)


def test_products_of_queries_and_keys_depend_on_the_difference_of_positions_alone():
    """The same query and the same key at every position: products are constant along diagonals,
    and change from one diagonal to the next."""
    q, k = (jnp.broadcast_to(draw(seed)[:, :1], (B, T, H, K)) for seed in (0, 1))
    turned = (rotate(x, rotation(positions(), K)) for x in (q, k))
    products = np.asarray(jnp.einsum("BTHK,BSHK->BHTS", *turned))
    np.testing.assert_allclose(products[..., 1:, 1:], products[..., :-1, :-1], atol=1e-4)
    assert np.all(np.abs(np.diff(products[..., 0, :])).max(axis=-1) > 0.1)


@pytest.mark.parametrize("shift", [1, 7, 500])
def test_products_do_not_change_when_a_text_is_moved(shift):
    """Angles in float32 are exact to 2^-24 of themselves, so to 500 / 2^24 here."""
    q, k = draw(0), draw(1)
    here, there = (
        jnp.einsum("BTHK,BSHK->BHTS", rotate(q, turn), rotate(k, turn))
        for turn in (rotation(positions(), K), rotation(positions(shift), K))
    )
    np.testing.assert_allclose(here, there, atol=1e-3)


def test_norms_are_kept_and_position_zero_turns_nothing():
    x = draw(0)
    turned = rotate(x, rotation(positions(), K))
    norms = [np.linalg.norm(np.asarray(y), axis=-1) for y in (x, turned)]
    np.testing.assert_allclose(*norms, rtol=1e-5)
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
    assert np.all(np.abs(turned[:, 1:] - x[:, 1:]).max(axis=-1) > 0.01)


def test_bfloat16_is_rounded_once():
    x = draw(0, jnp.bfloat16)
    turned = rotate(x, rotation(positions(), K))
    assert turned.dtype == jnp.bfloat16
    exact = rotate(x.astype(jnp.float32), rotation(positions(), K))
    np.testing.assert_array_equal(turned, exact.astype(jnp.bfloat16))


def test_other_positions_turn_nothing():
    x = draw(0)
    assert rotate(x, None) is x


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
    module = RelativeBias(num_heads=3, deviation=1.0, bidirectional=False)
    params = nn.unbox(module.init(jax.random.key(0), 9, 9))
    whole = np.asarray(module.apply(params, 9, 9))
    table = np.asarray(params["params"]["table"])
    for t in range(9):
        expected = table[[reference.bucket(s - t, False) for s in range(9)]]
        np.testing.assert_array_equal(whole[0, :, t], expected.T)
    alone = np.asarray(module.apply(params, 2, 9, jnp.int32(7)))
    np.testing.assert_array_equal(alone, whole[:, :, 7:])
