"""What observes training, and when; `measures` has the table of what can be measured."""

from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from transformer_jax.data.dataset import Split
from transformer_jax.devices.mesh import constrain
from transformer_jax.inspection.measures import PROBES, Measure, Step, diagnose
from transformer_jax.inspection.sharpness import make_sharpness
from transformer_jax.models.family import Batch, Params
from transformer_jax.run import Run
from transformer_jax.runs.log import Texts
from transformer_jax.training.probe import Observation, Probe

# Rows of a batch that diagnostics and the rows of PROBES look at.
ROWS = 8


def probes(run: Run, validation: Split) -> tuple[Probe, ...]:
    """What measures in training, in the order in which a line of the log has the values.

    Traces the rows of train.probes, and warns of one that has nothing to say of this model. What a
    row raises names it.
    """
    train = run.train
    curvature = make_sharpness(run)
    evaluations = {
        "validation": lambda observation: run.task.losses(
            run.trained(observation.state.evaluated), validation
        ),
        "samples": lambda observation: _samples(run, observation.state.evaluated),
    }
    return (
        Probe(
            "diagnostics",
            train.diagnostics_every,
            compiled(run, diagnose),
            needs_before=True,
            at=train.diagnostics_at,
        ),
        Probe(
            "diagnostics",
            train.sharpness_every,
            lambda observation: curvature(observation.state, observation.batch),
        ),
        *(
            Probe(name, every, _traced(run, name), needs_before=True)
            for name, every in train.probes
        ),
        *(
            Probe(name, train.evaluate_every, measure, last=train.steps, at=train.evaluate_at)
            for name, measure in evaluations.items()
        ),
    )


def compiled(run: Run, measure: Measure) -> Callable[[Observation], dict[str, Any]]:
    """The measure as a program, which is compiled when it is first due."""

    @jax.jit
    def program(before: Params, after: Params, batch: Batch) -> Any:
        rows = jax.tree.map(lambda array: array[:ROWS], batch)
        step = Step(run.model, run.loss, run.roles, before, after, rows)
        return jax.tree.map(constrain, measure(step))

    return lambda seen: program(seen.before, seen.state.params, seen.batch)


def _traced(run: Run, name: str) -> Callable[[Observation], dict[str, Any]]:
    """A row of PROBES as `compiled`, traced before its first step, which then need not."""
    measure, state = compiled(run, PROBES[name]), run.abstract_state
    try:
        values = jax.eval_shape(measure, Observation(state, state.params, run.abstract_batch()))
    except Exception as error:
        error.add_note(f"This is of {name!r} in train.probes.")
        raise
    if not values:
        logging.warning("train.probes: %r has nothing to measure in this model", name)
    return measure


def _samples(run: Run, params: Params) -> dict[str, Texts]:
    """The results of the lines in evaluate.samples, if there are any."""
    lines = run.evaluate.samples
    if not lines or run.task.results is None:
        return {}
    return {"lines": Texts(lines, run.task.results(run.trained(params), lines))}
