"""Which initial values are the same: common parameters of two models, and no two of one.

What schemes share is seen in schemes_test.
"""

import itertools

import numpy as np
import pytest

from tests.models import tiny

ARCHITECTURES = ("encoder_decoder", "decoder_only", "masked_tokens")


@pytest.mark.long
def test_no_two_kernels_share_a_draw():
    """What the stacks of other shapes draw is the same, as seen below."""
    kernels = []
    for path, leaf in tiny.flat(tiny.initial_parameters(tiny.config())).items():
        if path.split("/")[-1] in ("query", "key", "value", "output", "up", "down"):
            kernels += [np.sort(layer.ravel())[:4].tobytes() for layer in np.asarray(leaf)]
    assert len(kernels) == 2 * (6 + 10)
    assert len(set(kernels)) == len(kernels)


def common(a: dict, b: dict) -> set:
    """The paths that two trees share, whose draws are found to be the same."""
    for path in a.keys() & b.keys():
        assert np.array_equal(a[path], b[path]), path
    return a.keys() & b.keys()


def test_heads_share_the_draw_of_everything_below_them():
    trees = {
        shape: tiny.flat(tiny.initial_parameters(tiny.config(**tiny.SHAPES[shape])))
        for shape in ("masked_tokens", "mean_classes", "tags")
    }
    for a, b in itertools.combinations(trees.values(), 2):
        assert {path for path in a if "head" not in path} <= common(a, b)
    assert common(trees["mean_classes"], trees["tags"]) == trees["tags"].keys()


def test_shapes_share_the_draw_of_every_stack_that_they_share():
    whole, decoder, encoder = (
        tiny.flat(tiny.initial_parameters(tiny.config(**tiny.SHAPES[shape])))
        for shape in ARCHITECTURES
    )
    assert common(whole, encoder) == {path for path in encoder if "token_head" not in path}
    assert common(whole, decoder) == decoder.keys()
