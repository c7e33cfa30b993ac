"""Trains a run's steps again, to see what went wrong."""

import json
from pathlib import Path

from transformer_jax.commands.opening import lock, save
from transformer_jax.commands.restore import check
from transformer_jax.commands.start import begin, start
from transformer_jax.config.build import built
from transformer_jax.configs.default import Config
from transformer_jax.inspection import memory
from transformer_jax.models import FAMILIES
from transformer_jax.process import hosts
from transformer_jax.run import Run
from transformer_jax.runs.workdir import CONFIG, REPLAY, is_writable, read_fork
from transformer_jax.tools.replay.replay import BadStep
from transformer_jax.tools.replay.replay import replay as train_again


def replay(config: Config, workdir: Path, step: int | None) -> int:
    """Trains again up to a step, in float32, and names what became non-finite first.

    Starts from the last checkpoint before the step, or where there is none from the beginning.
    What it finds is kept in replay.json, if the work directory can be written.
    """
    if not (workdir / CONFIG).exists():
        raise FileNotFoundError(f"there is no run in {workdir} to replay: train there first")
    if not FAMILIES[config.model.family].inspected:
        raise ValueError(
            "replay names sublayers of a Transformer, which a model of model.family="
            f"{config.model.family!r} does not have; metrics.jsonl has its gradient norms"
        )
    if writable := hosts.first(lambda: is_writable(workdir)):
        lock(workdir)
    with built(config, workdir) as run:
        if step is None or not 1 <= step <= run.train.steps:
            raise ValueError(f"replay needs a --step=N of 1 to {run.train.steps}, got {step}")
        memory.check(run, memory.replay(run))
        checkpoints = run.checkpoints(workdir)
        before = [saved for saved in checkpoints.steps() if saved < step]
        newest = checkpoints.find(before[-1]) if before else None
        if newest is None and (trunk := read_fork(workdir)):
            raise FileNotFoundError(
                f"this run is a fork, of step {trunk['step']} of {trunk['run']}, and has no "
                f"checkpoint before step {step}: give a later --step, or fork anew elsewhere"
            )
        if newest is not None:
            check(run, workdir, newest)
        streams = run.train_streams()
        if newest is not None:
            state = start(run, workdir, newest, streams, bad=step)
        else:
            state = begin(run, streams, workdir, keep=False)
        print(f"Replaying from step {int(state.step)} to {step} in float32.")
        finding = _finding(run, train_again(run, state, streams, step))
        print(finding)
        if writable:
            save(workdir / REPLAY, json.dumps({"step": step, "found": finding}, indent=1) + "\n")
        return 0


def _finding(run: Run, bad: BadStep | None) -> str:
    if bad is None:
        return (
            "Everything is finite. If training was not, at these steps, then it ran on another "
            f"machine or version, or range or rounding of {run.model.config.dtype} is to blame."
        )
    tensor = bad.tensor or "none, when its parts are computed one by one"
    return (
        f"Step {bad.step} is bad: loss {bad.loss}, gradient norm {bad.gradient_norm}.\n"
        f"Its first tensor that is not finite: {tensor}"
    )
