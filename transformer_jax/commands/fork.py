"""Forks: a run that branches off from a checkpoint of another one, with all of its state.

The checkpoint is copied into the new work directory, and training goes on from it as from any of
its own: so the run that it comes from may go, and a fork that changes nothing is a resumption.
"""

import json
import shutil
from pathlib import Path

from transformer_jax.checkpoint.checkpoints import PROGRESS, step_of, whole
from transformer_jax.checkpoint.init_from import source_of
from transformer_jax.commands.opening import save
from transformer_jax.commands.restore import check, check_data
from transformer_jax.config.load import identity, load, refused_in_fork, to_json
from transformer_jax.process import hosts, progress
from transformer_jax.run import Run
from transformer_jax.runs import manifest
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, FORK


def source(run: Run, workdir: Path) -> Path:
    """The checkpoint that `checkpoint.fork_from` names, which this run may go on from.

    Raises:
      FileNotFoundError: there is none that is whole.
      ValueError: its config differs in what a fork may not change, or no steps are left; and what
        `restore.check` and `restore.check_data` refuse.
    """
    trunk = source_of(Path(run.checkpoint.fork_from).expanduser().resolve())
    named = f"checkpoint.fork_from={run.checkpoint.fork_from!r}"
    if lines := refused_in_fork(identity(load(str(trunk / CONFIG))), run.identity):
        raise ValueError(
            f"{named} is a run from which a fork may not differ in this; undo it, or set "
            "checkpoint.init_from, which takes parameters alone:\n  " + "\n  ".join(lines)
        )
    if (step := step_of(trunk)) >= run.train.steps:
        raise ValueError(
            f"{named} has made {step} steps, and train.steps={run.train.steps} leaves none: raise "
            f"it, or name an earlier checkpoint, as RUN/{CHECKPOINTS}/STEP"
        )
    check(run, workdir, trunk)
    mend = "set checkpoint.init_from instead, which takes parameters alone"
    check_data(trunk, run.train_streams(), mend)  # before anything is written
    return trunk


def fork(run: Run, workdir: Path, trunk: Path) -> Path:
    """Copies a checkpoint of `source` into `workdir`, and returns its place there.

    A kill on the way leaves no checkpoint, so that the same command does it again.
    """
    record = {"run": str(trunk.parents[1]), "step": step_of(trunk)}
    with progress.phase("Copying the checkpoint"):
        save(workdir / FORK, json.dumps(record, indent=1))
        save(workdir / CONFIG, to_json(run.as_json))
        folder = workdir.absolute() / CHECKPOINTS / str(record["step"])
        hosts.first(lambda: _copy(trunk, folder))
    return folder


def _copy(trunk: Path, folder: Path) -> None:
    """Makes a checkpoint that belongs to this work directory, whose log is empty."""
    partial = folder.with_suffix(".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(trunk, partial)
    whole(partial)  # it may have been pruned meanwhile
    shutil.copy(folder.parents[1] / CONFIG, partial)
    progress_of = json.loads((partial / PROGRESS).read_text())
    (partial / PROGRESS).write_text(json.dumps(progress_of | {"records": 0}))
    manifest.write(partial)
    partial.rename(folder)
