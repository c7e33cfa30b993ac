"""Whole commands, as a user or a sweep starts them: many trainings; one line that is generated."""

import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.sweep import ROOT
from experiments.speed.workers import Row, in_turn
from transformer_jax.runs.workdir import read_metrics

_MAIN = [sys.executable, "-P", "-m", "transformer_jax.main"]
# What the command imports before it reads its work directory
_IMPORTS = "import transformer_jax.main as main; main.COMMANDS['generate'].load()"
_SCHEMES, _RATES, _SEEDS = ("post_ln", "pre_ln"), (1e-3, 3e-3, 1e-2), 4


def generate(config_file: Path, *, rounds: int) -> list[Row]:
    """Rows of "importing alone" and of "generate", which continues one line: seconds of a process.

    Each has run once before, so that caches are full.
    """
    with tempfile.TemporaryDirectory() as workdir:
        call([*_MAIN, f"--config={config_file}", f"--workdir={workdir}"])
        works = {
            "importing alone": [sys.executable, "-P", "-c", _IMPORTS],
            "generate": [*_MAIN, "--mode=generate", f"--workdir={workdir}"],
        }
        turns = {name: functools.partial(call, command, "a\n") for name, command in works.items()}
        for turn in turns.values():
            turn()
        return in_turn(turns, rounds)


def sweep(config_file: Path, *, rounds: int) -> list[Row]:
    """Rows of 24 trainings by "one process" and by "a process each": seconds of all of them.

    "loss" is the sum of their last losses.
    """
    return in_turn(
        {
            "one process": functools.partial(_trainings, config_file, shared=True),
            "a process each": functools.partial(_trainings, config_file, shared=False),
        },
        rounds,
    )


def _trainings(config_file: Path, *, shared: bool) -> Row:
    """Trains each scheme with each rate and seed, as a sweep's slot does; their losses summed."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        arms = itertools.product(_SCHEMES, _RATES, range(_SEEDS))
        for number, (scheme, rate, seed) in enumerate(arms):
            workdir = Path(folder, str(number))
            workdir.mkdir()
            (workdir / "log.txt").touch()  # as whoever starts a run of a sweep does
            changes = {"model.residual": scheme, "optimizer.learning_rate": rate, "seed": seed}
            words = [f"--config={config_file}", f"--workdir={workdir}"]
            words += [f"--config.{key}={value}" for key, value in changes.items()]
            runs.append({"words": words, "workdir": str(workdir)})
        if shared:
            lines = "".join(json.dumps(run) + "\n" for run in runs)
            row = call([sys.executable, "-P", "-m", "experiments.harness.train"], lines)
        else:
            each = [call([*_MAIN, *run["words"]])["seconds"] for run in runs]
            row = {"seconds": sum(each)}
        return {**row, "loss": sum(_last_loss(Path(run["workdir"])) for run in runs)}


def _last_loss(workdir: Path) -> float:
    return [record["train/loss"] for record in read_metrics(workdir) if "train/loss" in record][-1]


def call(command: Sequence[str], text: str = "") -> Row:
    """Seconds of a process that reads this text. Raises RuntimeError where it fails."""
    started = time.perf_counter()
    ended = subprocess.run(command, input=text, text=True, capture_output=True, cwd=ROOT)
    if ended.returncode:
        end = ended.stderr[-2000:]
        raise RuntimeError(f"{' '.join(command)} ended with status {ended.returncode}:\n{end}")
    return {"seconds": time.perf_counter() - started}
