"""The report of a folder that has none of its own."""

import csv
import json

import pytest

from experiments.harness import default_report
from tests.experiments.harness.runs import finished


def trained(labels, loss, **scores):
    """A run whose losses fall to `loss` in two steps."""
    metrics = [
        {"step": step, "train/token_loss": loss / step, "validation/token_loss": loss / step}
        for step in (1, 2)
    ]
    results = {"status": "finished", "train/token_loss": loss, "time/wall_seconds": 9.0, **scores}
    return finished(labels, results=results, metrics=metrics)


def table(text):
    """The first table of a report as rows by column."""
    head, _, *lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *lines)]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def test_scores_are_means_and_deviations_over_seeds(tmp_path, undrawn):
    runs = [
        trained(
            {"scheme": scheme, "layers": 6, "seed": seed},
            first + seed,
            **{"test/bleu": 10.0 * seed, "test/loss": 1.0},
        )
        for scheme, first in (("admin", 1.0), ("pre_ln", 3.0))
        for seed in range(3)
    ]
    diverged = {"status": "diverged", "test/bleu": None}
    runs.append(finished({"scheme": "post_ln", "layers": 6}, results=diverged))
    out = tmp_path / "results"
    out.mkdir()
    text = default_report.report(runs, out, "cpu")
    admin, pre_ln, post_ln = table(text)
    assert admin["scheme"] == "admin" and admin["layers"] == "6" and "seed" not in admin
    assert admin["runs"] == "3 finished" and post_ln["runs"] == "1 diverged"
    assert admin["train/token_loss"] == "2 ± 1" and pre_ln["train/token_loss"] == "4 ± 1"
    assert admin["test/bleu"] == "10 ± 10" and post_ln["test/bleu"] == ""
    assert "test/loss" not in admin and not [name for name in admin if name.startswith("time/")]
    # The figure has a line for each setting, the csv a row for each run.
    assert "![" in text and "(results/cpu_curves.svg)" in text
    assert (out / "cpu_curves.png").exists()
    rows = list(csv.DictReader((out / "cpu.csv").read_text().splitlines()))
    assert [row["seed"] for row in rows] == ["0", "1", "2"] * 2 + [""]
    assert rows[0]["test/loss"] == "1.0"
    summary = json.loads((out / "summary.json").read_text())
    assert summary["cpu/train/token_loss/admin"] == 2.0
    assert summary["cpu/test/bleu/post_ln"] is None


@pytest.mark.parametrize("labels", [{}, {"seed": 0}])
def test_one_run_needs_no_label(tmp_path, labels, undrawn):
    text = default_report.report([trained(labels, 2.0)], tmp_path, "cpu")
    (row,) = table(text)
    assert row["train/token_loss"] == "2" and row["runs"] == "1 finished"
    assert "±" not in text


def test_all_measurements_are_written(tmp_path):
    runs = [finished({"size": size}, [{"i": i} for i in range(size)]) for size in (2, 50)]
    text = default_report.report(runs, tmp_path, "cpu")
    assert table(text)[0]["runs"] == "1 measured"
    assert len((tmp_path / "cpu_measurements.csv").read_text().splitlines()) == 53
