"""The report of a folder that has none of its own."""

import csv
import json

import numpy as np
import pytest
from scipy import stats

from experiments.harness import default_report
from experiments.harness.small import CONFIG
from experiments.harness.sweep import Run
from tests.experiments.harness.runs import finished, parabola


def trained(labels, loss, **scores):
    """A run whose losses fall to `loss` in two steps."""
    metrics = [
        {"step": step, "train/token_loss": loss / step, "validation/token_loss": loss / step}
        for step in (1, 2)
    ]
    results = {"status": "finished", "train/token_loss": loss, "time/wall_seconds": 9.0, **scores}
    run = Run(config=CONFIG, overrides={"seed": labels.get("seed", 0)}, labels=labels)
    return finished(run, results=results, metrics=metrics)


def tables(text):
    """The tables of a report, each as rows by column."""
    grids = []
    for part in (part for part in text.split("\n\n") if part.startswith("|")):
        head, _, *rows = [[*map(str.strip, line[1:-1].split("|"))] for line in part.splitlines()]
        grids.append([dict(zip(head, row, strict=True)) for row in rows])
    return grids


def test_arms_have_means_intervals_and_differences_of_pairs(tmp_path, undrawn):
    noise = [0.3, -0.1, 0.2, 0.5]  # what a seed does to every arm
    more = {"test/bleu": 10.0, "test/loss": 1.0}
    runs = [
        trained({"scheme": scheme, "layers": 6, "seed": seed}, first + noise[seed], **more)
        for scheme, first, seeds in (("pre_ln", 3.0, (2, 0, 1)), ("admin", 1.0, (0, 1, 3)))
        for seed in seeds
    ]
    diverged = {"status": "diverged", "test/bleu": None}
    runs.append(finished({"scheme": "post_ln", "layers": 6}, results=diverged))
    text = default_report.report(runs, tmp_path, "cpu")
    arms, less = tables(text)
    pre_ln, admin, post_ln = arms
    assert admin["scheme"] == "admin" and admin["layers"] == "6" and "seed" not in admin
    assert admin["runs"] == "3 finished" and post_ln["runs"] == "1 diverged"
    values = np.array([3.2, 3.3, 2.9])
    half = stats.t.ppf(0.975, 2) * stats.sem(values)
    assert pre_ln["train/token_loss"] == f"{values.mean():.2f} ± {half:.2f}"
    assert post_ln["test/bleu"] == "" and "n = 1 to 3" in text
    # Only seeds 0 and 1 are in both: exactly 2 apart, whatever the seeds do.
    assert [row["scheme"] for row in less] == ["admin", "post_ln"]
    assert less[0]["train/token_loss"] == "-2.000 ± 0.000 (2 pairs, 2 runs left out)"
    assert "test/loss" not in admin and not [name for name in admin if name.startswith("time/")]
    # The figure has a line for each setting, the csv a row for each run.
    assert "![" in text and f"({tmp_path.name}/cpu_curves.svg)" in text
    assert (tmp_path / "cpu_curves.png").exists()
    rows = list(csv.DictReader((tmp_path / "cpu.csv").read_text().splitlines()))
    assert [row["seed"] for row in rows] == [*"201", *"013", ""]
    assert rows[0]["test/loss"] == "1.0"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["cpu/train/token_loss/pre_ln"] == pytest.approx(values.mean(), rel=1e-5)
    assert summary["cpu/test/bleu/post_ln"] is None


def test_of_a_label_with_numbers_the_best_is_found_by_arm(tmp_path, undrawn):
    """Where parabolas are least, a fifth of an octave on for each seed."""
    runs = [
        trained({"scheme": scheme, "rate": rate, "seed": seed}, loss)
        for scheme, at in (("admin", -4.3), ("pre_ln", -1.0))
        for seed in range(2)
        for rate, loss in parabola(at - 0.2 * seed, [2.0**power for power in range(-6, 0)]).items()
    ]
    text = default_report.report(runs, tmp_path, "cpu")
    best = next(rows for rows in tables(text) if "best rate" in rows[0])
    first, second = (row["best rate"] for row in best)
    assert float(first.split()[0]) == pytest.approx(2**-4.4, rel=1e-2) and "end of" not in first
    assert second.endswith("(end of the grid)")
    assert [row["n"] for row in best] == ["2", "2"] and "cpu_rate.svg" in text


@pytest.mark.parametrize("labels", [{}, {"seed": 0}])
def test_one_run_needs_no_label(tmp_path, labels, undrawn):
    text = default_report.report([trained(labels, 2.0)], tmp_path, "cpu")
    ((row,),) = tables(text)
    assert row["train/token_loss"] == "2" and row["runs"] == "1 finished"
    assert "±" not in text


def test_all_measurements_are_written(tmp_path):
    runs = [finished({"size": size}, [{"i": i} for i in range(size)]) for size in (2, 50)]
    text = default_report.report(runs, tmp_path, "cpu")
    assert tables(text)[0][0]["runs"] == "1 measured"
    assert len((tmp_path / "cpu_measurements.csv").read_text().splitlines()) == 53
