"""What is left to do for a job."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import jobs
from experiments.harness.jobs import Job
from experiments.harness.sweep import Run
from transformer_jax.config import kinds, load
from transformer_jax.config.kinds import Kind

MAIN, MEASURE = "transformer_jax.main", "experiments.harness.measure"
BEAM, MOVED = {"decode.beam_size": 2}, {"data.dir": "/moved"}


def _run(overrides: dict[str, Any], **arguments: Any) -> Run:
    return Run(config="configs/bigram_copy.py", overrides=overrides, labels={}, **arguments)


def _modules(workdir: Path, run: Run) -> list[str]:
    """The modules of the commands that are left."""
    return [command[2] for command in Job(workdir, workdir, (run,)).commands()]


def _train(workdir: Path, run: Run, status: str) -> None:
    """Leaves what training leaves, without training."""
    (workdir / "results.json").write_text(json.dumps({"status": status}))
    (workdir / "config.json").write_text(load.to_json(run.resolved))


def _measure(workdir: Path, run: Run) -> None:
    """Leaves what measuring leaves, without measuring."""
    measurements = {"rows": [], "config": run.measured}
    (workdir / "measurements.json").write_text(json.dumps(measurements))


def test_a_trained_run_is_scored_again_where_scores_are_asked_for_otherwise(tmp_path):
    run = _run({})
    _train(tmp_path, run, "plateaued")
    assert _modules(tmp_path, run) == _modules(tmp_path, _run(MOVED)) == []
    assert _modules(tmp_path, _run(BEAM)) == [MAIN]
    _train(tmp_path, run, "preempted")
    assert _modules(tmp_path, run) == [MAIN]


def test_a_run_that_is_measured_alone_is_measured_again_with_another_config(tmp_path):
    run, moved, other = (_run(each, train=False, measure={}) for each in ({}, MOVED, BEAM))
    _measure(tmp_path, run)
    assert _modules(tmp_path, run) == _modules(tmp_path, moved) == []
    assert _modules(tmp_path, other) == [MEASURE]


def test_what_was_measured_before_a_run_was_scored_again_is_measured_again(tmp_path):
    before, now = _run({}, measure={}), _run(BEAM, measure={})
    assert before.id == now.id
    _train(tmp_path, before, "finished")
    _measure(tmp_path, before)
    assert _modules(tmp_path, now) == [MAIN, MEASURE]
    _train(tmp_path, now, "finished")
    assert _modules(tmp_path, now) == [MEASURE]
    _measure(tmp_path, now)
    assert _modules(tmp_path, now) == []


@pytest.mark.parametrize("text", ["a b", "\n\n", r"\n", "'a'", 'say "it"', "it's", "C:\\", "é\\"])
def test_a_text_of_an_override_is_read_back_from_the_command_line(text):
    assert kinds.parse(Kind(str, False), jobs._literal(text)) == text


def test_a_process_trains_runs_that_agree_in_what_stays_with_it():
    def process(overrides, **arguments):
        return Job(Path(), Path(), (_run(overrides, **arguments),)).process

    changes = {"seed": 1, "optimizer.learning_rate": 0.5, "model.d_model": 32}
    assert process(changes) == process({}) is not None
    assert None is not process({"data.cache_dir": "/elsewhere"}) != process({})
    assert process({"log.trackers": ("mlflow",)}) is None
    assert process({}, measure={"size": 1}) is None
