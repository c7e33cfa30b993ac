"""What observes training; `probes` is the table."""

import jax

from transformer_jax.data.dataset import Split
from transformer_jax.inspection.diagnostics import diagnose
from transformer_jax.inspection.sharpness import make_sharpness
from transformer_jax.models.family import Params
from transformer_jax.run import Run
from transformer_jax.runs.log import Texts
from transformer_jax.training.probe import Probe


def probes(run: Run, validation: Split) -> tuple[Probe, ...]:
    """What measures in training, in the order in which a line of the log has the values."""
    train = run.train
    # Compiled where they are first asked for.
    inside = jax.jit(lambda *step: diagnose(run.model, run.loss, run.roles, *step))
    curvature = make_sharpness(run)
    return (
        Probe(
            "diagnostics",
            train.diagnostics_every,
            lambda seen: inside(seen.before, seen.state.params, seen.batch),
            needs_before=True,
        ),
        Probe("diagnostics", train.sharpness_every, lambda seen: curvature(seen.state, seen.batch)),
        Probe(
            "validation",
            train.evaluate_every,
            lambda seen: run.task.losses(run.trained(seen.state.evaluated), validation),
            last=train.steps,
        ),
        Probe(
            "samples",
            train.evaluate_every,
            lambda seen: _samples(run, seen.state.evaluated),
            last=train.steps,
        ),
    )


def _samples(run: Run, params: Params) -> dict[str, Texts]:
    """The results of the lines in evaluate.samples, if there are any."""
    lines = run.evaluate.samples
    if not lines or run.task.results is None:
        return {}
    return {"lines": Texts(lines, run.task.results(run.trained(params), lines))}
