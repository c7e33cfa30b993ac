"""Shifts of made-up optima by rule and size."""

import math

import numpy as np
import pytest

from experiments.harness import transfer
from tests.experiments.harness.runs import GRID, parabola, trainings


def _rows(rule, width, optima, grid=GRID):
    """Of each seed a parabola with this optimum; None: all diverged."""
    seeds = [dict.fromkeys(grid) if at is None else parabola(at, grid) for at in optima]
    return trainings(seeds, rule=rule, width=width)


@pytest.fixture
def shifts():
    rows = [
        *_rows("one rate", 32, [-4.0, -4.2]),
        *_rows("one rate", 64, [-5.0, -5.2]),
        *_rows("one rate", 128, [-6.0]),
        *_rows("by layer", 64, [-4.0, -4.4]),
        *_rows("by layer", 128, [None]),
    ]
    return transfer.shifts(transfer.with_base(rows, "width"), "width")


def _one(shifts, rule, width):
    (shift,) = (row for row in shifts if (row["rule"], row["width"]) == (rule, width))
    return shift


def test_rules_without_a_base_have_that_of_the_first(shifts):
    base = _one(shifts, "by layer", 32)
    assert base["optimum"] == pytest.approx(_one(shifts, "one rate", 32)["optimum"])
    rows = [*_rows("a", 3, [-4.0]), *_rows("b", 3, [-5.0])]
    assert sorted(map(str, transfer.with_base(rows, "width"))) == sorted(map(str, rows))


def test_a_shift_is_that_of_the_means_with_the_deviation_of_all_sizes(shifts):
    row = _one(shifts, "one rate", 64)
    assert row["shift"] == pytest.approx(-1.0)
    # Two deviations of 0.1 around two means: s^2 = (2 * 0.01 + 2 * 0.01) / 2.
    deviation = math.sqrt(0.02)
    assert row["error"] == pytest.approx(deviation * math.sqrt(1 / 2 + 1 / 2))
    assert _one(shifts, "one rate", 128)["error"] == pytest.approx(deviation * math.sqrt(1 + 1 / 2))


def test_the_penalty_is_that_of_the_bases_best_rate(shifts):
    # The grid's best rate of the base is 2^-4, of the others 2^-5 and 2^-6.
    losses = {at: np.mean([0.05 * (at - best) ** 2 for best in (-5.0, -5.2)]) for at in (-4, -5)}
    assert _one(shifts, "one rate", 64)["penalty"] == pytest.approx(losses[-4] - losses[-5])
    assert _one(shifts, "one rate", 128)["penalty"] == pytest.approx(0.05 * 4)


def test_a_base_that_never_trains_leaves_the_others_without_a_shift():
    rows = [*_rows("post_ln", 3, [None]), *_rows("post_ln", 6, [-4.0])]
    row = _one(transfer.shifts(rows, "width"), "post_ln", 6)
    assert "shift" not in row and "penalty" not in row and row["optimum"] == pytest.approx(-4.0)
    transfer.table([row], "width")
