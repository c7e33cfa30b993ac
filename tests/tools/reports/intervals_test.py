"""Intervals against SciPy, and numbers as they are written."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import Estimate


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_means_and_pairs_have_the_intervals_of_scipy(n):
    values, base = np.random.default_rng(n).normal([[2.0], [1.0]], size=(2, n))
    # In another order, and with a run that has no partner.
    mixed, by_seed = {99: 0.0, **dict(reversed([*enumerate(values)]))}, dict(enumerate(base))
    expected: Any
    differences = intervals.mean(intervals.paired_differences(mixed, by_seed))
    for estimate, expected in (
        (intervals.mean(values), stats.ttest_1samp(values, 0.0)),
        (differences, stats.ttest_rel(values, base)),
    ):
        ends = estimate.value - estimate.half_width, estimate.value + estimate.half_width
        assert ends == pytest.approx(expected.confidence_interval(0.95))
        assert estimate.counts == (expected.pvalue < 0.05)
    assert intervals.less(mixed, by_seed) == f"{differences:+} ({n} pairs, 1 run left out)"
    assert intervals.less({1: 2.0}, {2: 1.0}) == ""


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 30.0, 1e5, 1e8])
def test_a_mean_is_written_to_the_digits_of_its_error(scale):
    """Both numbers come back to within half of the last digit, which is the error's second."""
    for value, error in ((1.23456, 0.0994), (-9.99, 0.00996), (9.99, 7.7), (0.0, 1.0)):
        estimate = Estimate(scale * value, scale * error, math.inf)
        text, _, power = f"{estimate}".partition("e")
        centre, half = (float(part.strip("()").replace(",", "")) for part in text.split(" ± "))
        unit = 10.0 ** int(power or 0)
        last = 10.0 ** (math.floor(math.log10(estimate.half_width)) - 1)
        assert centre * unit == pytest.approx(estimate.value, abs=5.1 * last)
        assert half * unit == pytest.approx(estimate.half_width, abs=0.51 * last)
    assert f"{Estimate(1.7684, 0.0051, math.inf):+}" == "+1.768 ± 0.010"
    assert f"{intervals.mean([0.5])}" == "0.5" and not intervals.mean([0.5]).counts
