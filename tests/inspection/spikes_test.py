"""The spike score against slow sums, value by value."""

import math

import numpy as np
import pytest

from transformer_jax.inspection.spikes import spike_score, spike_scores


@pytest.fixture
def series():
    """Noise of unit size around a slope, with jumps of 5 to 30, up and down."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=3_000) + np.linspace(1_010, 1_000, 3_000)
    places = rng.choice(3_000, 60, replace=False)
    values[places] += rng.uniform(5, 30, 60) * rng.choice([-1, 1], 60)
    return values


def _slow_spike_score(values, window, deviations):
    spiked = []
    for number, value in enumerate(values):
        before = values[max(number - window, 0) : number]
        before = before[np.isfinite(before)]
        if len(before) >= 100:
            far = abs(value - before.mean()) >= deviations * before.std()
            spiked.append(far or not np.isfinite(value))
    return 100 * np.mean(spiked)


@pytest.mark.parametrize(("window", "deviations"), [(1_000, 7), (1_000, 3), (200, 7)])
def test_the_score_is_that_of_its_definition(series, window, deviations):
    score = spike_score(series, window=window, deviations=deviations)
    assert score == pytest.approx(_slow_spike_score(series, window, deviations))
    assert 0 < score < 5


@pytest.mark.parametrize("outlier", [np.nan, np.inf, -np.inf, 1e8, 1e14])
def test_what_is_huge_or_not_finite_spikes_and_what_is_not_enters_no_mean(series, outlier):
    series[[500, 501, 2_000]] = outlier
    score = spike_score(series)
    assert score == pytest.approx(_slow_spike_score(series, 1_000, 7))
    assert 0 < score < 5


def test_an_even_series_has_no_spike_and_a_short_one_no_score():
    assert spike_score(np.full(2_000, 3.0)) == 0
    assert spike_score(np.linspace(5, 1, 2_000)) == 0
    assert math.isnan(spike_score(np.ones(100)))


def test_steps_that_were_all_logged_get_scores():
    losses: list[float | None] = [3.0 + 0.01 * (step % 3) for step in range(300)]
    losses[150:153] = 9.0, None, 9.0  # None stands for what is not finite
    records = [
        {"step": step, "train/loss": loss, "train/gradient_norm": 1.0 + 0.1 * (step % 2)}
        for step, loss in enumerate(losses, 1)
    ]
    expected = {"loss": pytest.approx(100 * 3 / 200), "gradient_norm": 0}
    assert spike_scores(records) == {"spike_score": expected}
    assert spike_scores([*records, {"step": 300, "validation/loss": 3.0}]) == spike_scores(records)
    assert spike_scores(records[1::2]) == spike_scores(records[:100]) == {}
