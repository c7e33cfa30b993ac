"""Optimizers under equal tuning: the cells of a search, speed-ups, swaps, verdicts."""

import math

import numpy as np
import pytest

from experiments.optimizers import measure, report
from tests.experiments import tiny


def test_steps_to_a_loss_lie_on_a_line_of_logarithms_and_end_with_the_curve():
    curve = {250: 2.0 * 250**-0.1, 1_000: 2.0 * 1_000**-0.1}
    assert report.steps_to(2.0 * 700**-0.1, curve) == pytest.approx(700)
    assert report.steps_to(0.1, curve) == pytest.approx(1_000)
    assert report.steps_to(9.0, curve) == pytest.approx(250)
    assert math.isnan(report.steps_to(2.0, {}))


def test_an_error_of_the_bootstrap_is_that_of_a_difference_of_means():
    rng = np.random.default_rng(0)
    losses = {(name, 1, "yes"): rng.normal(0, 1, (8, 2)) for name in "ab"}
    estimate = report.bootstrap(
        lambda means: means["a", 1, "yes"][1] - means["b", 1, "yes"][1], losses
    )
    arms = [values[:, 1] for values in losses.values()]
    assert estimate.value == pytest.approx(arms[0].mean() - arms[1].mean())
    assert estimate.error == pytest.approx(math.sqrt(sum(x.var(ddof=1) / 8 for x in arms)), rel=0.1)
    one = {key: values[:1] for key, values in losses.items()}
    assert math.isnan(report.bootstrap(lambda means: 1.0, one).error)


def losses(ends, halves=None, untuned=0.01):
    """Of optimizers, whose losses are those of AdamW at so many steps, 2 n^-0.1; two seeds."""

    def seeds(half, end):
        return np.array([[half, end - 1e-4], [half, end + 1e-4]])

    halves = halves or ends
    tuned = {
        (name, 500, "yes"): seeds(2 * halves[name] ** -0.1, 2 * steps**-0.1)
        for name, steps in ends.items()
    }
    adamw = {("adamw", n, "yes"): seeds(2.0, 2 * n**-0.1) for n in (250, 1_000, 2_000)}
    slow = {("adamw", n, "no"): seeds(2.0, 2 * (n * untuned) ** -0.1) for n in (500, 1_000, 2_000)}
    return tuned | adamw | slow


def lines(losses):
    names = [name for name, steps, how in losses if steps == 500 and how == "yes"]
    ups = {name: report.bootstrap(report._speed_up(name, 500), losses) for name in names}
    return report._lines(losses, ups, "muon", 500)


def test_verdicts_follow_the_lines_of_the_protocol(monkeypatch):
    monkeypatch.setattr(report, "_DRAWS", 100)  # as good for errors that are as small
    ends = dict.fromkeys(report._CLAIMED, 600) | {"adamw": 500, "muon": 650, "sgd": 260}
    halves = ends | {"soap": 255, "muon": 254, "adamw": 700, "lion": 270, "lamb": 280}
    text, numbers = lines(losses(ends, halves, untuned=0.6))
    assert text.count("**held**") == 4
    assert numbers["median"] == pytest.approx(1.2, rel=0.02)
    assert numbers["inflated"] == pytest.approx(1 / 0.6, rel=0.02)
    faster = dict.fromkeys(report._CLAIMED, 1_500) | {"adamw": 500, "muon": 510, "sgd": 260}
    text, _ = lines(losses(faster, untuned=1.0))
    assert text.count("**contradicted**") == 4
    # What is beyond AdamW's curve is a bound, which refutes nothing.
    short = {key: array for key, array in losses(faster, untuned=1.0).items() if key[1] == 500}
    assert lines(short)[0].startswith("*The best optimizer is faster*: **undecided**")
    few = {name: faster[name] for name in ("adamw", "muon")}
    assert "median*: **undecided**" in lines(losses(few))[0]


def test_pairs_of_which_one_diverged_are_not_counted_as_in_order():
    half, end = {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 3.0, "b": 2.0, "c": 1.0}
    assert report._swapped(half, end) == 1
    assert report._swapped(half | {"d": 4.0}, end | {"d": math.nan}) == 1
    assert math.isnan(report._swapped(half, dict.fromkeys(end, math.nan)))


def test_the_slope_over_widths_waits_for_all_of_them():
    summary = {f"d{width}/best": 1.6 - 0.1 * n for n, width in enumerate((32, 64, 128))}
    assert "**undecided**" in report._over_widths(summary)
    errors = {f"d{width}/best/error": 0.02 for width in (32, 64, 128)}
    assert "**held**; -0.100" in report._over_widths(summary | errors)
    assert "**contradicted**" in report._over_widths(summary | errors | {"d128/best": 1.58})


@pytest.mark.long
def test_a_search_takes_all_decays_at_the_best_rate_and_fresh_seeds_the_best_cell(tmp_path):
    config = tiny.config(tmp_path, 10, {"optimizer.name": "adamw"})
    rows = measure.measure(config, tmp_path, start=0.02, most=3, decays=[0.1, 0.0], fresh=1)
    search, fresh = rows[:-1], rows[-1]
    best = min(search[:3], key=lambda row: row["loss"])
    assert [row["weight_decay"] for row in search] == [0.1] * 3 + [0.0]
    assert search[3]["learning_rate"] == fresh["learning_rate"] == best["learning_rate"]
    assert fresh["weight_decay"] == min(search, key=lambda row: row["loss"])["weight_decay"]
    assert search[3]["loss"] != best["loss"]
    assert fresh["seed"] == 1 and fresh["half"] > fresh["loss"]
