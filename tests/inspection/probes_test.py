"""The table of probes: at which steps each row measures, and of which parameters."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from tests.training.tiny import make_settings
from transformer_jax.inspection import probes
from transformer_jax.runs.log import Texts
from transformer_jax.training.probe import Observation

EVERY: dict[str, Any] = {"diagnostics_every": 3, "sharpness_every": 4, "evaluate_every": 5}


def make(*, samples=("a", "b"), results=True, **changes):
    """The probes of a run that stands in for its parameters, which are numbers here."""
    run: Any = SimpleNamespace(
        train=make_settings(**(EVERY | {"steps": 12} | changes)),
        evaluate=SimpleNamespace(samples=samples),
        trained=lambda params: params,
        task=SimpleNamespace(
            losses=lambda params, split: {"loss": params * len(split)},
            results=(lambda params, lines: [[f"{line}{params}"] for line in lines])
            if results
            else None,
        ),
        model=SimpleNamespace(
            config=SimpleNamespace(plain=lambda: None), clone=lambda config: None
        ),
    )
    validation: Any = "split"
    return probes.probes(run, validation)


def due(rows):
    return [[step for step in range(1, 13) if probe.due(step)] for probe in rows]


def test_each_row_is_due_at_its_interval_and_scores_after_the_last_step():
    evaluated = [5, 10, 12]
    assert due(make()) == [[3, 6, 9, 12], [4, 8, 12], evaluated, evaluated]
    never: Any = dict.fromkeys(EVERY, 0)
    assert due(make(**never)) == [[], [], [12], [12]]
    listed = make(**never, evaluate_at=(0, 7), diagnostics_at=("log2", 3))
    assert due(listed) == [[1, 2, 3, 4, 8], [], [7, 12], [7, 12]]
    # Before the first step, what needs no step.
    assert [probe.due(0) for probe in listed] == [False, False, True, True]
    assert [probe.needs_before for probe in make()] == [True, False, False, False]


@pytest.mark.parametrize("ema", [False, True])
def test_scores_and_samples_are_of_the_moving_average_where_there_is_one(ema):
    state: Any = SimpleNamespace(params=2, evaluated=7 if ema else 2)
    observation = Observation(state, None, {"inputs": jnp.zeros((1, 1), int)})
    _, _, validation, samples = make()
    assert validation.measure(observation) == {"loss": 5 * state.evaluated}
    texts = [[f"a{state.evaluated}"], [f"b{state.evaluated}"]]
    assert samples.measure(observation) == {"lines": Texts(("a", "b"), texts)}
    for without in (make(samples=()), make(results=False)):
        assert without[-1].measure(observation) == {}
