"""The report of runs that were all measured, from rows that are made up."""

import json

import pytest

from experiments.speed import report, sweep
from tests.experiments.harness.runs import finished


def _finished(run):
    """A run in which every program takes a second."""
    asked = run.measure
    turn = {"seconds": 1.0, "calls": 1, "peak_bytes": 1e9, "version": "1.0"}
    rows = [
        {"program": name, "round": number, **turn, "cold": 2.0, "warm": 1.0}
        for name in asked.get("programs", ())
        for number in range(2)
    ]
    if asked["what"] == "training":
        steps = range(100, 5100, 100)
        rows = [{"step": step, "seconds": step / 9, "held_bytes": 1e9} for step in steps]
    return finished(run, rows)


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.delenv("SPEED_PEERS", raising=False)
    return [_finished(run) for run in sweep.cpu(quick=True)]


def test_without_peers_the_report_says_what_this_project_shows_alone(runs, tmp_path):
    text = report.report(runs, tmp_path)
    assert "PyTorch" not in text and "this project" in text
    assert "| step_base | this project | 1 (1 to 1) |" in text
    assert "| training: memory at the end over step 1,000 | at most 1.02 | 1.00 | yes |" in text
    numbers = json.loads((tmp_path / "summary.json").read_text())
    assert numbers["cpu/compile: 60 layers over 6"] == 1
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".svg", ".png"}
