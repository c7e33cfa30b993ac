"""A run that is killed again and again ends as one that was left alone, bit for bit."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import default
from transformer_jax import commands, overrides
from transformer_jax.build import build

KILLS = 10
CONFIG = {
    "data.source": "text",
    "data.validation": (),
    "data.validation_size": 9,
    "data.tokenizer.kind": "bytes",
    "data.max_source_length": 16,
    "data.max_target_length": 16,
    "data.row_source_length": 24,
    "data.row_target_length": 24,
    "data.batch_size": 8,
    "model.residual": "admin",
    "model.num_layers": 2,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "optimizer.schedule": "cosine",
    "optimizer.learning_rate": 0.01,
    "optimizer.warmup_steps": 5,
    "train.steps": 60,
    "train.accumulation_steps": 2,
    # Windows that neither begin nor end where checkpoints are.
    "train.log_every": 3,
    "train.evaluate_every": 10,
    "checkpoint.every": 2,
    "checkpoint.keep_last": 2,
    "checkpoint.average_last": 2,
    "decode.extra_length": 2,
    "decode.beam_size": 2,
}


@pytest.fixture
def launch(tmp_path):
    """Starts the command line on a tiny corpus, as a process of its own."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), 3)) for _ in range(80)]
    for split in ("train", "test"):
        for language, text in (("en", str), ("de", str.upper)):
            lines = [text(f"{a} {b}\n") for a, b in zip(words, reversed(words), strict=True)]
            (tmp_path / f"{split}.{language}").write_text("".join(lines))
    folders = {"data.dir": str(tmp_path), "data.cache_dir": str(tmp_path / "cache")}
    config = overrides.load(default.__file__, CONFIG | folders)
    (tmp_path / "config.json").write_text(overrides.to_json(config))
    environment = os.environ | {
        "PYTHONPATH": str(Path(default.__file__).parents[1]),
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def launch(workdir):
        arguments = [f"--config={tmp_path / 'config.json'}", f"--workdir={workdir}"]
        with (tmp_path / "output.txt").open("a") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "transformer_jax.main", *arguments],
                env=environment,
                stdout=output,
                stderr=output,
            )

    return launch


def _trace(workdir):
    """What can be seen of a run from outside: changes with every line logged and file saved."""
    metrics, checkpoints = workdir / "metrics.jsonl", workdir / "checkpoints"
    size = metrics.stat().st_size if metrics.exists() else -1
    return size, sorted(path.name for path in checkpoints.glob("*"))


def _kill_after(process, workdir, changes):
    """Kills the process once so many changes have been seen; returns whether it was alive."""
    seen = _trace(workdir)
    while changes and process.poll() is None:
        now = _trace(workdir)
        changes -= now != seen
        seen = now
        time.sleep(0.001)
    process.kill()
    return process.wait() < 0


def _records(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [_without_times(json.loads(line)) for line in lines]


def _without_times(values):
    return {name: value for name, value in values.items() if not name.startswith("time/")}


def _state(workdir):
    config = overrides.load(str(workdir / "config.json"))
    run = build(config, workdir / "tokenizer.json")
    restored = commands._checkpoints(run, workdir).restore("last", commands._abstract_state(run))
    assert restored is not None and restored.step == CONFIG["train.steps"]
    state = restored.state
    leaves, structure = jax.tree.flatten((state.params, state.opt_state, state.window))
    return [np.asarray(leaf).tobytes() for leaf in leaves], structure, restored.streams


def test_a_run_killed_ten_times_equals_an_unbroken_one(launch, tmp_path):
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert launch(unbroken).wait() == 0, (tmp_path / "output.txt").read_text()

    rng = np.random.default_rng(0)
    killed = 0
    while killed < KILLS:
        alive = _kill_after(launch(broken), broken, changes=rng.integers(1, 14))
        assert alive, "the run ended before it was killed often enough: train for longer"
        killed += 1
    assert launch(broken).wait() == 0, (tmp_path / "output.txt").read_text()

    assert _records(broken) == _records(unbroken)
    assert _state(broken) == _state(unbroken)
    results = [json.loads((folder / "results.json").read_text()) for folder in (broken, unbroken)]
    assert _without_times(results[0]) == _without_times(results[1])
    assert results[0]["status"] == "finished"
