"""Which initial values are the same: common parameters of two models, and no two of one.

What schemes share is seen in schemes_test.
"""

import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.layers.attention import ATTENTION_GATES, ATTENTION_WEIGHTS


@pytest.mark.long
def test_no_two_kernels_share_a_draw():
    """What the stacks of other shapes draw is the same, as seen below."""
    kernels = []
    for path, leaf in tiny.flat(tiny.initial_parameters(tiny.config())).items():
        if path.split("/")[-1] in ("query", "key", "value", "output", "up", "down"):
            kernels += [np.sort(layer.ravel())[:4].tobytes() for layer in np.asarray(leaf)]
    assert len(kernels) == 2 * (6 + 10)
    assert len(set(kernels)) == len(kernels)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("encoder_decoder", "decoder_only"),
        ("encoder_decoder", "masked_tokens"),
        ("mean_classes", "masked_tokens"),
        ("mean_classes", "tags"),
    ],
)
def test_shapes_share_the_draw_of_all_that_they_share(one, other):
    """All that the other has, but for the head of masked tokens."""
    a, b = (
        tiny.flat(tiny.initial_parameters(tiny.config(**tiny.SHAPES[shape])))
        for shape in (one, other)
    )
    shared = a.keys() & b.keys()
    assert shared == {path for path in b if "token_head" not in path}
    for path in shared:
        np.testing.assert_array_equal(a[path], b[path], err_msg=path)


@pytest.mark.parametrize(
    "changes",
    [
        *({"attention_gate": name} for name in ATTENTION_GATES),
        *({"attention_weights": name} for name in ATTENTION_WEIGHTS),
        {"attention_bias": "all"},
    ],
    ids=lambda changes: "-".join(*changes.items()),
)
def test_what_a_setting_adds_to_attention_starts_from_zeros_and_changes_no_draw(changes):
    """In a whole model, whose scan over depth counts the parameters of a layer."""
    before = tiny.flat(tiny.initial_parameters(tiny.config()))
    after = tiny.flat(tiny.initial_parameters(tiny.config(**changes)))
    assert before.keys() <= after.keys()
    for path, draw in after.items():
        np.testing.assert_array_equal(draw, before.get(path, np.zeros_like(draw)), err_msg=path)
