"""From the runs of a sweep to jobs, every one checked before any of them starts."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from experiments.harness.jobs import Job
from experiments.harness.sweep import Run, part
from transformer_jax import tasks
from transformer_jax.config import build, effects
from transformer_jax.config import load as overrides
from transformer_jax.data.prepare import tokenizer
from transformer_jax.devices.mesh import AXES, least_devices

# A work directory with two labels, and a tokenizer of which nothing is read but that it is there.
# A temporary folder would stay where planning is interrupted.
_STAND_IN = Path(__file__).parent / "stand_in"


def plan(runs: Sequence[Run], folder: Path, home: Path) -> list[Job]:
    """The jobs of a sweep. home: the folder of their work directories.

    Raises:
      ValueError, FileNotFoundError: for a run that could not be run, naming it.
    """
    if not runs:
        raise ValueError(f"the sweep of {folder} is empty")
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(run.id, []).append(run)
    for first, *others in same.values():
        for other in others:
            if difference := overrides.difference(first.resolved, other.resolved):
                raise ValueError(
                    f"the runs {first} and {other} would share a work directory, but differ in "
                    f"{'; '.join(difference)}: that is not part of what a run is"
                )
        check(first, folder)
        if first.fork_from is not None:
            check_fork(first, first.fork_from)
    return [Job(folder, home / id, tuple(same[id])) for id in same]


def check_listed(runs: Sequence[Run]) -> None:
    """Raises ValueError for a fork of a run that the sweep does not list."""
    ids = {run.id for run in runs}
    for run in runs:
        if run.fork_from is not None and run.fork_from.id not in ids:
            raise ValueError(
                f"the run {run} is a fork of {run.fork_from}, which the sweep does not list: add it"
            )


def check_fork(run: Run, trunk: Run) -> None:
    """Raises ValueError where the run differs from its trunk in what a fork may not."""
    ours = overrides.identity(run.resolved)
    if lines := overrides.refused_in_fork(overrides.identity(trunk.resolved), ours):
        raise ValueError(f"the run {run} cannot be a fork of {trunk}: {'; '.join(lines)}")
    step = trunk.resolved.train.steps if run.fork_step is None else run.fork_step
    if step >= run.resolved.train.steps:
        raise ValueError(
            f"the run {run} has train.steps={run.resolved.train.steps}, and is a fork of {trunk} "
            f"at step {step}: raise it"
        )


def check(run: Run, folder: Path) -> build.Run:
    """Builds what the config describes, without data, and fits the arguments to `measure`.

    Where the vocabulary comes from the data, a stand-in takes its place. The CPU takes the place of
    every device that the mesh needs: a run's devices are its own.

    Raises:
      ValueError, FileNotFoundError: naming the run.
    """
    config = run.resolved
    try:
        task = tasks.choose(config.task.name, config.model.architecture)
        effects.check(config, run.overrides)
        if task.recipe.tokenized and config.model.vocab_size is None:
            size = tokenizer.train_tokenizer("bytes", (), 0, task.recipe.extra_tokens).vocab_size
            config = overrides.replace(config, {"model.vocab_size": size})
        mesh = [config.mesh[axis] for axis in AXES]
        built = build.build(config, _STAND_IN, jax.devices()[:1] * least_devices(mesh))
        if run.measure is not None:
            measure: Callable = part(folder, "measure").measure
            inspect.signature(measure).bind(config, _STAND_IN, **run.measure)
    except (ValueError, FileNotFoundError, TypeError) as error:
        raise ValueError(f"the run {run}: {error}") from error
    return built
