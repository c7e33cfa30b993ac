"""Trains a run's steps again, to see what went wrong."""

from pathlib import Path

from configs.default import Config
from transformer_jax.build import built
from transformer_jax.commands.restore import check, resume
from transformer_jax.commands.start import begin
from transformer_jax.inspection.replay import replay as train_again
from transformer_jax.models import FAMILIES
from transformer_jax.preflight import memory
from transformer_jax.run import Run
from transformer_jax.workdir import CONFIG


def replay(config: Config, workdir: Path, step: int | None) -> int:
    """Trains again up to a step, in float32, and names what became non-finite first.

    Starts from the last checkpoint before the step, or where there is none from the beginning.
    Writes nothing.
    """
    if not (workdir / CONFIG).exists():
        raise FileNotFoundError(f"there is no run in {workdir} to replay: train there first")
    if not FAMILIES[config.model.family].inspected:
        raise ValueError(
            "--mode=replay names sublayers of a Transformer, which a model of model.family="
            f"{config.model.family!r} does not have; metrics.jsonl has its gradient norms"
        )
    with built(config, workdir) as run:
        if step is None or not 1 <= step <= run.train.steps:
            raise ValueError(
                f"--mode=replay needs a --step=N of 1 to {run.train.steps}, got {step}"
            )
        memory.check(run, memory.replay)
        checkpoints = run.checkpoints(workdir)
        before = [saved for saved in checkpoints.steps() if saved < step]
        newest = checkpoints.find(before[-1]) if before else None
        if newest is not None:
            check(config, run, workdir, newest)
        streams = run.train_streams()
        state = resume(run, newest, streams).state if newest else begin(run, streams).state
        print(f"Replaying from step {int(state.step)} to {step} in float32.")
        bad = train_again(run, state, streams, step)
        if bad is None:
            print("Everything is finite.", _why_finite(run))
            return 0
        print(f"Step {bad.step} is bad: loss {bad.loss}, gradient norm {bad.gradient_norm}.")
        missing = "none, when its parts are computed one by one"
        print(f"Its first tensor that is not finite: {bad.tensor or missing}")
        return 0


def _why_finite(run: Run) -> str:
    dtype = run.model.config.dtype
    if dtype == "float32":
        return "If training was not, at these steps, then it ran on another machine or version."
    return (
        f"If training was not, at these steps, then range or rounding of {dtype} may be to blame."
    )
