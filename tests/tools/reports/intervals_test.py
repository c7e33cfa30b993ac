"""Intervals against SciPy, on committed runs and by how often they hold the truth."""

import collections
import csv
import math

import numpy as np
import pytest
from scipy import stats

from experiments.harness.results import difference
from experiments.harness.sweep import ROOT
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import Estimate


def test_committed_runs_have_the_paired_interval_of_scipy():
    cells = collections.defaultdict(lambda: collections.defaultdict(dict))
    committed = ROOT / "experiments/norm_placement/results/as_one.csv"
    for row in csv.DictReader(committed.read_text().splitlines()):
        cells[row["layers"]][row["scheme"]][int(row["seed"])] = float(row["loss"])
    for schemes in cells.values():
        base = schemes.pop("pre_ln")
        for losses in schemes.values():
            # In another order, and with a run that has no partner.
            mixed = {9: 0.0, **dict(reversed(losses.items()))}
            estimate = intervals.mean(intervals.paired_differences(mixed, base))
            paired = stats.ttest_rel([losses[seed] for seed in base], [*base.values()])
            ends = estimate.value - estimate.half_width, estimate.value + estimate.half_width
            assert ends == pytest.approx(paired.confidence_interval(0.95))
            assert estimate.counts == (paired.pvalue < 0.05)
            assert intervals.less(mixed, base) == f"{estimate:+} (3 pairs, 1 run left out)"
    assert intervals.less({1: 2.0}, {2: 1.0}) == ""


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_intervals_hold_the_truth_as_often_as_they_say(n):
    """Of means, differences, and pairs to both of which seeds do the same."""
    rng = np.random.default_rng(n)
    draws = rng.normal(size=(4000, 2, n))
    shared = draws + 5 * rng.normal(size=(4000, 1, n))
    hits = {"mean": [], "difference": [], "paired": []}
    for (a, b), pair in zip(draws, shared, strict=True):
        hits["mean"].append(not intervals.mean(a).counts)
        hits["difference"].append(not difference(a, b).counts)
        of_a, of_b = (dict(enumerate(values)) for values in pair)
        hits["paired"].append(not intervals.mean(intervals.paired_differences(of_a, of_b)).counts)
    assert all(0.93 <= np.mean(each) <= 0.97 for each in hits.values()), hits


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
