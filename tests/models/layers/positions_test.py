"""Rotary positions are rounded once, and relative ones have the buckets of T5.

What attention makes of positions is compared with NumPy in transformer/shapes_test.
"""

from ast import literal_eval
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from transformer_jax.models.layers.positions import buckets, rotate, rotation


def test_turning_in_bfloat16_is_rounded_once():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 12, 3, 10)), jnp.bfloat16)
    turn = rotation(jnp.broadcast_to(jnp.arange(12), (2, 12)), 10)
    turned = rotate(x, turn)
    assert turned.dtype == jnp.bfloat16
    exact = rotate(x.astype(jnp.float32), turn)
    np.testing.assert_array_equal(turned, exact.astype(jnp.bfloat16))


LENGTH = "original_max_position_embeddings=16"
YARN = "yarn", "factor=4", LENGTH, "beta_fast=3"
SHORT = "longrope", "short_factor=1.5,1,2,3", LENGTH


@pytest.mark.parametrize(
    "scaling",
    [
        ("linear", "factor=3"),
        ("llama3", "factor=8", "low_freq_factor=0.5", "high_freq_factor=2", LENGTH),
        YARN,
        (*YARN, "truncate=0", "attention_factor=1.7"),
        (*YARN, "mscale=2", "mscale_all_dim=0.5", "beta_fast=0", "beta_slow=0"),
        (*SHORT, "factor=4"),
        (*SHORT, "attention_factor=1.2"),
        ("dynamic", "factor=4", LENGTH),
    ],
)
def test_scaled_rotations_are_those_of_transformers(scaling):
    """At a base and a length of training that bite. Half of the channels turn."""
    transformers = pytest.importorskip("transformers")
    kind, *settings = scaling
    rope: dict[str, Any] = dict(rope_type=kind, rope_theta=50.0, partial_rotary_factor=0.5)
    rope |= {name: literal_eval(number) for name, number in (text.split("=") for text in settings)}
    rope["long_factor"] = rope.get("short_factor")
    theirs = transformers.LlamaConfig(rope_parameters=rope, hidden_size=64, num_attention_heads=4)
    scale = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    inverse, gain = scale(theirs, seq_len=9)
    turns = rotation(jnp.arange(9)[None], 8, 50.0, scaling)
    angles = np.outer(np.arange(9), inverse.numpy())
    np.testing.assert_allclose(turns.cos[0], gain * np.cos(angles), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(turns.sin[0], gain * np.sin(angles), rtol=1e-4, atol=1e-5)
    bounded = kind in ("longrope", "dynamic")
    case = tiny.config(positions="rotary", rotary_fraction=0.5, head_dim=16, rotary_scaling=scaling)
    assert case.longest_row == (16 if bounded else None)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_are_those_of_t5(bidirectional):
    """The published formula, place by place; every bucket has a distance, and its own side."""
    distances = np.arange(-600, 601)
    numbers = np.asarray(buckets(jnp.asarray(distances), bidirectional=bidirectional))
    expected = [reference.bucket(int(d), bidirectional) for d in distances]
    np.testing.assert_array_equal(numbers, expected)
    # Of keys after the query, those of 0 are not there: a distance of 0 is not behind.
    assert set(numbers.tolist()) == set(range(32)) - ({16} if bidirectional else set())
