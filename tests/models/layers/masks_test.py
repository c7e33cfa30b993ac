"""Masks as drawn matrices: # is seen."""

import jax.numpy as jnp
import numpy as np

from transformer_jax.models.layers.masks import causal_mask, segment_mask


def drawn(*rows):
    return np.array([[character == "#" for character in row] for row in rows])


def test_causal():
    expected = drawn(
        "#...",
        "##..",
        "###.",
        "####",
    )
    np.testing.assert_array_equal(causal_mask(4), expected)


def test_segments_within_a_row():
    segments = jnp.array([[1, 1, 2, 0]])
    expected = drawn(
        "##..",
        "##..",
        "..#.",
        "....",
    )
    np.testing.assert_array_equal(segment_mask(segments, segments)[0], expected)


def test_segments_of_targets_in_sources_of_another_length():
    targets = jnp.array([[1, 2, 2], [1, 0, 0]])
    sources = jnp.array([[1, 1, 2, 0], [1, 1, 1, 1]])
    expected = [drawn("##..", "..#.", "..#."), drawn("####", "....", "....")]
    np.testing.assert_array_equal(segment_mask(targets, sources), np.stack(expected))


def test_both_together_are_packed_self_attention():
    segments = jnp.array([[1, 1, 2, 2, 0]])
    expected = drawn(
        "#....",
        "##...",
        "..#..",
        "..##.",
        ".....",
    )
    mask = segment_mask(segments, segments)[0] & causal_mask(5)
    np.testing.assert_array_equal(mask, expected)
