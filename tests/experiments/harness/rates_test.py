"""Best learning rates of known parabolas, and what fails."""

import math

import numpy as np
import pytest

from experiments.harness import rates
from tests.defaults import optimizer_settings
from tests.experiments.harness.runs import GRID, parabola, trainings
from transformer_jax.training.schedule import make_schedule


@pytest.mark.parametrize("at", [-6.8, -5.5, -5.0, -2.3])
def test_the_optimum_of_a_parabola_is_its_vertex(at):
    optimum = rates.optimum(parabola(at))
    assert optimum.inside
    np.testing.assert_allclose(optimum.log2_rate, at, atol=1e-9)
    assert optimum.loss == min(parabola(at).values())


@pytest.mark.parametrize("at, end", [(-12.0, GRID[0]), (3.0, GRID[-1])])
def test_an_optimum_beyond_the_grid_is_its_end_and_said_so(at, end):
    assert rates.optimum(parabola(at))[::2] == (math.log2(end), False)


@pytest.mark.parametrize("loss", [None, 3.35])
def test_next_to_what_failed_there_is_no_parabola(loss):
    """But the grid goes on there: it does not end with what was run."""
    losses: dict[float, float | None] = dict(parabola(-5.2))
    losses |= {rate: loss for rate in GRID if rate > 2.0**-5}
    assert rates.optimum(losses)[::2] == (-5.0, True)


def test_points_beyond_a_gap_do_not_count():
    """They would pull the vertex, since they lie on another curve."""
    losses: dict[float, float | None] = dict(parabola(-5.2))
    losses[2.0**-7], losses[2.0**-3] = math.nan, None
    expected = rates.optimum(parabola(-5.2, [2.0**-6, 2.0**-5, 2.0**-4]))
    np.testing.assert_allclose(rates.optimum(losses).log2_rate, expected.log2_rate)


def test_an_optimum_stays_between_the_points_it_is_fitted_to():
    """A loss that is flat but for noise has no vertex of its own."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        losses = dict(zip(GRID, 2 + 0.01 * rng.normal(size=len(GRID)), strict=True))
        least = math.log2(min(losses, key=losses.__getitem__))
        assert abs(rates.optimum(losses).log2_rate - least) <= 2


def test_without_a_training_that_learns_more_than_frequencies_there_is_no_optimum():
    with pytest.raises(ValueError, match="no training has a loss"):
        rates.optimum({0.1: None, 0.2: math.nan})
    assert rates.optima(trainings([{0.1: None, 0.2: None}])) == {}
    assert set(rates.optima(trainings([{0.1: None, 0.2: None}, parabola(-5.0)]))) == {1}
    assert rates.optima(trainings([{0.1: 3.348, 0.2: 3.3475, 0.4: 3.3479}])) == {}


def test_the_best_rate_is_one_at_which_all_seeds_trained():
    first, second = parabola(-5.0), parabola(-4.0)
    rows = trainings([first, second])
    means = {rate: (first[rate] + second[rate]) / 2 for rate in GRID}
    assert rates.best_rate(rows) == min(means, key=means.__getitem__)
    failing = second | dict.fromkeys(GRID[3:])
    assert rates.best_rate(trainings([first, failing])) == GRID[2]
    assert rates.best_rate(trainings([{0.1: None}])) is None


def test_the_penalty_is_what_a_rate_loses():
    rows = trainings([parabola(-5.0), parabola(-5.0)])
    assert rates.penalty(rows, 2.0**-5) == 0
    assert rates.penalty(rows, 2.0**-8) == pytest.approx(0.05 * 9)
    assert rates.penalty(trainings([parabola(-5.0) | {0.5: None}]), 0.5) == math.inf
    assert rates.penalty(trainings([{0.1: None}]), 0.1) is None
    with pytest.raises(ValueError, match=r"0\.3 was not run, but \[0\.1"):
        rates.penalty(trainings([{0.1: 2.0}]), 0.3)


def test_what_fails_does_so_from_a_rate_on():
    losses = {1.0: 4.0, 2.0: 2.0, 4.0: 2.5, 8.0: 4.0, 16.0: None}
    assert rates.first_failing(losses, most=3.0) == 8.0  # 1.0 is slow
    assert rates.first_failing(losses | {16.0: 2.9}, most=3.0) == math.inf
    assert rates.first_failing({1.0: None, 2.0: None}, most=3.0) == 1.0


@pytest.mark.parametrize("shape", ["linear", "constant"])
def test_rates_given_by_step_are_those_of_the_schedule_of_that_name(shape):
    settings = optimizer_settings(
        schedule=shape, learning_rate=2.0, final_learning_rate=0.0, warmup_steps=4, steps=10
    )
    expected = make_schedule(settings)
    schedule = rates.schedule(2.0, 10, 4, shape)
    for step in range(1, 11):
        assert schedule(step) == pytest.approx(np.asarray(expected(step - 1)), abs=1e-6)
    assert rates.schedule(2.0, 2, 4, shape)(2) == 1.0  # as far as it comes
