"""What is left to do for a job."""

import dataclasses
import json
from pathlib import Path

import pytest

from experiments.harness import jobs
from experiments.harness.jobs import Job
from experiments.harness.sweep import Run
from transformer_jax.config import kinds
from transformer_jax.config import load as overrides
from transformer_jax.config.kinds import Kind


def test_a_trained_run_is_scored_again_where_scores_are_asked_for_otherwise(tmp_path):
    labels, settings = {"seed": 0}, {"decode.beam_size": 2}
    first = Run(config="configs/bigram_copy.py", overrides={}, labels=labels)
    second = Run(config="configs/bigram_copy.py", overrides=settings, labels=labels)
    moved = Run(config="configs/bigram_copy.py", overrides={"data.dir": "x"}, labels=labels)
    (tmp_path / "results.json").write_text('{"status": "plateaued"}')
    (tmp_path / "config.json").write_text(overrides.to_json(first.resolved))
    counts = [len(Job(tmp_path, tmp_path, (each,)).commands()) for each in (first, second, moved)]
    assert counts == [0, 1, 0]
    (tmp_path / "results.json").write_text('{"status": "preempted"}')
    assert len(Job(tmp_path, tmp_path, (first,)).commands()) == 1


def _modules(workdir: Path, run: Run) -> list[str]:
    """The modules of the commands that are left."""
    return [command[2] for command in Job(workdir, workdir, (run,)).commands()]


def _beam(size: int, **arguments) -> Run:
    overrides = {"decode.beam_size": size, "data.dir": f"/{size}"}
    arguments |= {"overrides": overrides, "labels": {}, "measure": {"size": 1}}
    return Run(config="configs/bigram_copy.py", **arguments)


def _measure(workdir: Path, run: Run) -> None:
    """Leaves what measuring leaves, without measuring."""
    measurements = {"rows": [], "config": run.measured}
    (workdir / "measurements.json").write_text(json.dumps(measurements))


def test_a_run_that_is_measured_alone_is_measured_again_with_another_config(tmp_path):
    run = _beam(2, train=False)
    _measure(tmp_path, run)
    moved = dataclasses.replace(run, overrides={**run.overrides, "data.dir": "/moved"})
    assert _modules(tmp_path, run) == _modules(tmp_path, moved) == []
    assert _modules(tmp_path, _beam(3, train=False)) == ["experiments.harness.measure"]


def test_what_was_measured_before_a_run_was_scored_again_is_measured_again(tmp_path):
    before, now = _beam(2), _beam(3)
    assert before.id == now.id
    (tmp_path / "results.json").write_text('{"status": "finished"}')
    (tmp_path / "config.json").write_text(overrides.to_json(before.resolved))
    _measure(tmp_path, before)
    commands = ["transformer_jax.main", "experiments.harness.measure"]
    assert _modules(tmp_path, now) == commands
    (tmp_path / "config.json").write_text(overrides.to_json(now.resolved))
    assert _modules(tmp_path, now) == commands[1:]
    _measure(tmp_path, now)
    assert _modules(tmp_path, now) == []


def test_measurements_that_do_not_name_their_config_count(tmp_path):
    """So that nothing is measured again that was measured before they did."""
    (tmp_path / "measurements.json").write_text('{"rows": []}')
    assert not _modules(tmp_path, _beam(2, train=False))


@pytest.mark.parametrize("text", ["a b", "\n\n", r"\n", "'a'", 'say "it"', "it's", "C:\\", "é\\"])
def test_a_text_of_an_override_is_read_back_from_the_command_line(text):
    assert kinds.parse(Kind(str, False), jobs._literal(text)) == text


@pytest.mark.parametrize(
    ("changes", "arguments", "shares"),
    [
        ({"seed": 1, "optimizer.learning_rate": 0.5, "model.d_model": 32}, {}, True),
        ({"data.cache_dir": "/elsewhere"}, {}, False),
        ({"log.trackers": ("mlflow",)}, {}, None),
        ({}, {"measure": {"size": 1}}, None),
    ],
)
def test_a_process_trains_runs_that_agree_in_what_stays_with_it(changes, arguments, shares):
    first, other = (
        Job(Path(), Path(), (Run(config="configs/bigram_copy.py", overrides=c, labels={}, **a),))
        for c, a in (({}, {}), (changes, arguments))
    )
    assert first.process is not None
    assert (other.process is None) == (shares is None)
    assert (other.process == first.process) == bool(shares)
