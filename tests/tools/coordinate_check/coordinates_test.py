"""Sizes of activations against those of a pass, and slopes against the powers they are made of."""

import numpy as np
import pytest

from tests.inspection.models import POST_LN, make, observe_function
from tests.models import tiny
from transformer_jax.tools.coordinate_check import coordinates


@pytest.mark.long
def test_sizes_are_means_over_real_tokens():
    batch = tiny.packed_batch()
    before, after = (tiny.random_parameters(POST_LN, seed) for seed in (0, 1))
    sizes = coordinates.sizes(make(POST_LN), before, after, batch)
    look = observe_function(POST_LN)
    (old_outputs, olds), (outputs, news) = look(before, batch), look(after, batch)
    real = batch["targets_segment_ids"] > 0
    pairs = {"logits": (old_outputs.arrays(), outputs.arrays(), real)}
    for stack, activations in news.items():
        real = activations.real
        pairs[f"{stack} input"] = olds[stack].inputs[0], activations.inputs[0], real
        pairs[f"{stack} output"] = olds[stack].final, activations.final, real
    expected = {}
    for name, (old, new, real) in pairs.items():
        expected[name] = np.mean(np.abs(np.asarray(new)[real]))
        expected[f"change of {name}"] = np.mean(np.abs(np.asarray(new - old)[real]))
    assert sizes.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sizes[name], value, rtol=1e-5, err_msg=name)


def test_slopes_are_the_powers():
    scales, powers = (1, 2, 4, 8), np.array([0.0, -0.5, 1.25])
    sizes = [
        [{"x": scale**powers * (1 + 0.1 * seed), "nothing": np.zeros(3)} for seed in range(3)]
        for scale in scales
    ]
    slopes = coordinates.slopes(scales, sizes)
    np.testing.assert_allclose(slopes["x"], powers, atol=1e-12)
    np.testing.assert_array_equal(slopes["nothing"], 0.0)  # before the first change, and frozen
    for seed in sizes[2]:
        seed["x"] = np.array([0.0, np.nan, 1.0])  # a 0 among others has no slope
    assert np.isnan(coordinates.slopes(scales, sizes)["x"][:2]).all()


@pytest.mark.parametrize(
    ("name", "slopes", "expected"),
    [
        ("decoder output", [9.0] * 8 + [0.04, -0.05, 0.0], None),
        ("decoder output", [0.0] * 8 + [0.04, -0.07, 0.06], -0.07),
        ("change of decoder output", [0.0] * 9 + [0.2, 0.1], 0.2),
        ("logits", [0.0] * 8 + [-0.5, -0.3, -0.2], None),
        ("change of logits", [0.0] * 8 + [0.1, 0.06, 0.0], 0.1),
        ("decoder input", [0.0] * 10 + [np.nan], np.nan),
    ],
)
def test_what_grows_from_the_eighth_step_on_is_told(name, slopes, expected):
    growth = coordinates.grown({name: np.array(slopes)})
    np.testing.assert_equal(growth, {} if expected is None else {name: expected})
