"""Sizes against those of the parameters that were trained, and slopes of made-up sizes."""

import itertools

import jax
import numpy as np
import pytest

from experiments.harness import coordinate_check
from experiments.harness.trainings import Trainings
from tests.experiments import tiny
from transformer_jax.config.build import build
from transformer_jax.tools import coordinate_check as coordinates

STEPS, RATE = 12, 0.01


@pytest.mark.long
def test_sizes_are_those_of_the_first_ten_steps_on_the_first_batch(tmp_path):
    trainings = Trainings(build(tiny.config(tmp_path, STEPS, {})))
    rows = coordinate_check.sizes(trainings, RATE, seeds=2)
    measured = {(row["seed"], row["step"], row["activation"]): row["size"] for row in rows}
    for update in trainings.steps(RATE, 1):
        params = jax.tree.map(np.array, update.state.params)
        if update.step == 0:
            initial, first = params, update.batch
        if update.step in (0, 10):
            expected = coordinates.sizes(trainings.run.model, initial, params, first)
            for name, size in expected.items():
                close = pytest.approx(float(size), rel=1e-4, abs=1e-6)
                assert measured[1, update.step, name] == close, name
    assert measured.keys() == {*itertools.product((0, 1), range(11), expected)}


def test_slopes_are_the_powers_of_each_rule():
    """From step 8 on, the one that is furthest from 0, whatever came before."""
    powers = {"a": [9.0] * 8 + [0.5, 0.25, 0.0], "b": [9.0] * 8 + [0.1, -0.2, 0.1]}
    rows = [
        {"rule": rule, "layers": layers, "seed": seed, "step": step, "activation": "logits"}
        | {"size": (1 + seed) * layers**power}
        for rule, by_step in powers.items()
        for layers in (12, 3, 6)
        for seed in (0, 1)
        for step, power in enumerate(by_step)
    ]
    slopes = coordinate_check.slopes(rows, "layers")
    assert coordinate_check.numbers(slopes) == pytest.approx(
        {"slope/a/logits": 0.5, "slope/b/logits": -0.2}
    )
    assert "+0.50 | -0.20" in coordinate_check.table(slopes)
