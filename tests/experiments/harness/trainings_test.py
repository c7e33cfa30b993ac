"""Trainings in this process are those of the command line's step, by rate and seed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.harness.trainings import Trainings
from tests.experiments import tiny
from transformer_jax.config.build import build
from transformer_jax.devices.mesh import place

STEPS, RATE, SEED = 4, 0.01, 3
CHANGES = {"optimizer.warmup_steps": 2, "train.accumulation_steps": 2, "train.ema_decay": 0.9}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    return Trainings(build(tiny.config(tmp_path_factory.mktemp("text"), STEPS, CHANGES)))


def test_rates_by_step_and_a_decay_that_follows_the_schedule_are_refused(trainings):
    optimizer = dataclasses.replace(trainings.run.optimizer, weight_decay_power=2)
    following = Trainings(dataclasses.replace(trainings.run, optimizer=optimizer))
    with pytest.raises(ValueError, match="^optimizer.weight_decay_power=2 follows the schedule"):
        next(following.steps(lambda step: RATE, SEED))


@pytest.mark.long
def test_they_are_the_steps_of_a_run_with_this_rate_and_seed(trainings, tmp_path):
    changes = CHANGES | {"optimizer.learning_rate": RATE, "seed": SEED}
    run = build(tiny.config(tmp_path, STEPS, changes))
    streams, step = run.train_streams(), run.train_step()
    batch = place(run.mesh, next(streams))
    state = run.new_state(batch)
    for update in trainings.steps(RATE, SEED):
        jax.tree.map(np.testing.assert_array_equal, dict(update.batch), batch)
        for one in ("params", "evaluated"):
            tree, expected = getattr(update.state, one), getattr(state, one)
            close = jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-6), tree, expected)
            assert all(jax.tree.leaves(close)), (one, update.step)
        if update.step:
            batch = place(run.mesh, next(streams))
        if update.step < STEPS:
            state, metrics = step(state, batch)
    assert update.step == STEPS


@pytest.mark.long
def test_a_row_holds_the_validation_loss_before_and_after(trainings):
    averages = {}  # the moving averages, which are scored

    def keep(update):
        averages[update.step] = jax.tree.map(np.array, update.state.evaluated)

    row = trainings.row(RATE, SEED, keep)
    assert list(averages) == list(range(STEPS + 1))
    for params, name in ((averages[0], "initial"), (averages[STEPS], "loss")):
        assert row[name] == pytest.approx(trainings.validation_loss(params), rel=1e-5)
    assert (row["learning_rate"], row["seed"]) == (RATE, SEED)


@pytest.mark.long
def test_a_branch_goes_on_as_the_whole_does_and_rates_may_be_given_by_step(trainings):
    def copy_of(update):
        return update._replace(state=jax.tree.map(jnp.copy, update.state))

    every = [copy_of(update) for update in trainings.steps(RATE, SEED)]
    steps = []

    def rate(step):
        steps.append(step)
        return RATE

    for _ in range(2):  # what it branches off from stays
        branch = [copy_of(update) for update in trainings.steps(rate, SEED, after=every[2])]
        assert [update.step for update in branch] == [2, 3, 4]
        jax.tree.map(np.testing.assert_array_equal, branch[-1].state.params, every[-1].state.params)
    assert steps == [3, 4, 3, 4]
    # Of the last step the schedule leaves nothing.
    _, other, _ = map(copy_of, trainings.steps(lambda step: 2 * RATE, SEED, after=every[2]))
    tables = [update.state.params["embedding"]["table"] for update in (other, every[3])]
    assert np.any(tables[0] != tables[1])
