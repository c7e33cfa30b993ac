"""Which initial values are the same: common parameters of two models, and no two of one."""

import itertools

import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.transformer.schemes import SCHEMES

ARCHITECTURES = ("encoder_decoder", "decoder_only", "masked_tokens")


@pytest.mark.parametrize("shape", ARCHITECTURES)
def test_no_two_kernels_share_a_draw(shape):
    config, kernels = tiny.config(**tiny.SHAPES[shape]), []
    for path, leaf in tiny.flat(tiny.initial_parameters(config)).items():
        if path.split("/")[-1] in ("query", "key", "value", "output", "up", "down"):
            kernels += [np.sort(layer.ravel())[:4].tobytes() for layer in np.asarray(leaf)]
    assert len(kernels) == 2 * (6 + 10 if shape == "encoder_decoder" else 6)
    assert len(set(kernels)) == len(kernels)


def common(a: dict, b: dict) -> set:
    """The paths that two trees share, whose draws are found to be the same."""
    for path in a.keys() & b.keys():
        assert np.array_equal(a[path], b[path]), path
    return a.keys() & b.keys()


# Those that scale no draw; what the others scale theirs by is in schemes_test.
UNSCALED = [name for name, row in SCHEMES.items() if row.gain is None]


@pytest.mark.parametrize(
    ("shape", "schemes"),
    [
        ("encoder_decoder", ("post_ln", "admin", "sandwich", "residual_dual")),
        ("decoder_only", UNSCALED),
        ("masked_tokens", ("post_ln", "peri_ln", "rezero")),
    ],
)
def test_schemes_share_the_draw_of_every_common_parameter(shape, schemes):
    """But for the trained scales, which are no draws: two schemes may start one differently."""
    sizes = tiny.SHAPES[shape] | dict(num_decoder_layers=3)
    trees = []
    for residual in schemes:
        tree = tiny.flat(tiny.initial_parameters(tiny.config(**sizes, residual=residual)))
        scales = ("shortcut/omega", "branch_scale/scale")
        trees.append({path: leaf for path, leaf in tree.items() if not path.endswith(scales)})
    for a, b in itertools.combinations(trees, 2):
        expected = {path for path in a if "_norm" not in path and "/norm/" not in path}
        assert expected <= common(a, b)
    other = tiny.flat(tiny.initial_parameters(tiny.config(**sizes), seed=4))
    assert not np.array_equal(other["embedding/table"], trees[0]["embedding/table"])


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
