"""From runs to numbers: intervals, pairs, lines, partings, tables and files."""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments.harness import results
from tests.experiments.harness.runs import finished


def losses(*values):
    return [{"step": step, "train/loss": value} for step, value in enumerate(values, start=1)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 11])
def test_the_interval_is_that_of_medians_of_resamples(count):
    """That of few values is their range."""
    values = np.random.default_rng(count).lognormal(size=count)
    spread = results.spread(values)
    bootstrap = stats.bootstrap((values,), np.median, method="percentile", rng=0)
    assert (spread.low, spread.high) == bootstrap.confidence_interval
    assert (spread.low, spread.high) == (values.min(), values.max()) or count > 5
    assert spread[:2] == (np.median(values), pytest.approx(np.mean(values)))
    assert spread.count == count
    assert results.spread(values) == spread  # the draws are always the same


def test_there_is_no_interval_of_one_value_or_of_what_is_not_finite():
    for values in ([2.0], [1.0, math.nan]):
        assert results.spread(values)[2:4] == (None, None), values
    assert results.spread([2.0, 2.0, 2.0])[2:4] == (2.0, 2.0)


@pytest.mark.parametrize("form", [".3g", ".2f", "+.3f"])
def test_an_interval_is_written_behind_the_median(form):
    for seed in range(5):
        values = np.random.default_rng(seed).lognormal(size=seed + 2)
        spread = results.spread(values)
        median, low, high = (format(number, form) for number in (spread[0], *spread[2:4]))
        assert results.median_interval(values, form) == f"{median} ({low} to {high})"
        assert results.median(values) == spread.median == np.median(values)
    assert results.median_interval([2.0], form) == format(2.0, form)
    assert results.median_interval([1.0, None], form) == ""
    assert math.isnan(results.median([1.0, None]))


def test_a_series_holds_what_was_logged_and_a_curve_the_labels_too():
    run = finished({"seed": 3}, metrics=[*losses(2.0, None), {"step": 3, "x": 1.0}])
    steps, values = run.series("train/loss")
    assert steps == [1, 2]
    assert values[0] == 2.0 and math.isnan(values[1])
    assert run.curve("train/loss")[0] == {"seed": 3, "step": 1, "loss": 2.0}


def test_pairs_are_found_by_their_labels():
    rows = [
        {"scheme": scheme, "seed": seed, "layers": layers, "loss": loss + seed * layers}
        for scheme, loss in (("admin", 1.0), ("pre_ln", 4.0), ("rezero", 9.0))
        for layers in (6, 18)
        for seed in range(3)
    ]
    between = ("scheme", "admin", "pre_ln")
    deltas = results.paired_differences(rows[::-1], "loss", between=between, on=("layers", "seed"))
    assert deltas == [-3.0] * 6
    with pytest.raises(ValueError, match="alike in seed"):
        results.paired_differences(rows, "loss", between=between, on=("seed",))
    with pytest.raises(ValueError, match="without a partner"):
        results.paired_differences(rows[1:], "loss", between=between, on=("layers", "seed"))


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "step"),
    [
        (losses(3.0, 2.0, 1.0), losses(3.0, 2.0, 1.0), 0.0, None),
        (losses(3.0, 2.0, 1.0), losses(3.0, 2.0 + 1e-7, 1.0), 0.0, 2),
        (losses(3.0, 2.0, 1.0), losses(3.0, 2.0 + 1e-7, 1.5), 1e-3, 3),
        (losses(3.0, None), losses(3.0, None), 0.0, None),
        (losses(3.0, None), losses(3.0, 2.0), 10.0, 2),
        (losses(3.0, 2.0), losses(3.0), 0.0, None),
        # Only what both logged can be compared.
        (losses(3.0, 2.0)[1:], losses(9.0, 2.0), 0.0, None),
        ([{"step": 1, "validation/loss": 3.0}], losses(3.0), 0.0, None),
    ],
)
def test_runs_part_where_their_losses_first_differ(a, b, tolerance, step):
    assert results.parting(a, b, tolerance) == step
    assert results.parting(b, a, tolerance) == step


def test_a_line_is_that_of_least_squares():
    np.testing.assert_allclose(results.line([0, 1, 2, 3], [1, 3, 2, 4]), (0.8, 1.3, 0.64))


def test_csv_keeps_columns_and_rounds(tmp_path):
    rows = [{"b": 1 / 3, "a": "x"}, {"b": np.float32(1e-9), "c": None}, {"a": True, "b": 10**9}]
    results.write_csv(tmp_path / "t.csv", rows)
    expected = "b,a,c\n0.333333,x,\n1e-09,,\n1000000000,True,\n"
    assert (tmp_path / "t.csv").read_bytes() == expected.encode()


def test_summaries_of_several_sweeps_are_merged(tmp_path):
    results.write_summary(tmp_path, {"slope/post_ln": 1.23456789, "slope/admin": 2})
    results.write_summary(tmp_path, {"gpu/bleu": np.float32(0.5), "slope/admin": math.inf})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {"gpu/bleu": 0.5, "slope/admin": None, "slope/post_ln": 1.23457}


@pytest.mark.parametrize("before", [None, "", "# Title\n\ntext\n"])
def test_a_report_goes_between_its_markers_which_a_readme_without_gets(tmp_path, before):
    readme = tmp_path / "README.md"
    if before is not None:
        readme.write_text(before)
    for name, text in (("cpu", "old"), ("gpu", "other\n"), ("cpu", "new")):
        results.insert(readme, name, text)
    lines = [line for line in readme.read_text().splitlines() if line]
    title = ["# Title", "text"] if before else [f"# {tmp_path.name}"]
    cpu, gpu = results.markers("cpu"), results.markers("gpu")
    assert lines == [*title, cpu[0], "new", cpu[1], gpu[0], "other", gpu[1]]


@pytest.mark.parametrize("order", [[0], [1, 0], [0, 1, 0, 1]])
def test_markers_that_are_not_there_once_and_in_order_are_asked_for(tmp_path, order):
    readme = tmp_path / "README.md"
    text = "\n".join(results.markers("cpu")[number] for number in order)
    readme.write_text(text)
    with pytest.raises(ValueError, match="<!-- generated: cpu --> and <!-- end: cpu -->"):
        results.insert(readme, "cpu", "new")
    assert readme.read_text() == text


def test_a_pooled_deviation_is_that_of_groups_whose_values_are_all_finite():
    pooled = results.pooled_deviation([[1.0, 3.0], [5.0, 5.0, 8.0], [math.nan, 2.0]])
    assert pooled.value == pytest.approx(math.sqrt((2 + 6) / 3)) and pooled.freedom == 3


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (5, 8)])
def test_a_difference_has_the_interval_of_students_test(sizes):
    rng = np.random.default_rng(1)
    values, others = rng.normal(0, 1, sizes[0]), rng.normal(1, 1, sizes[1])
    student: Any = stats.ttest_ind(values, others)
    difference = results.difference(values, others)
    assert difference.value / difference.error == pytest.approx(student.statistic)
    low, high = student.confidence_interval(0.95)
    assert difference.half_width == pytest.approx((high - low) / 2)
    assert difference.counts == (student.pvalue < 0.05)
    known = results.difference([1.0], [3.0], deviation=results.Deviation(0.5, 4))
    assert known == (-2.0, pytest.approx(0.5 * np.sqrt(2)), 4)
