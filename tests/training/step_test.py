"""One training step: its update, micro-batches, dropout, windows and moving average."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training import tiny
from tests.training.tiny import B, apply, make_batch, make_settings, make_state, make_step
from transformer_jax.training.optimizer import adam_state, make_optimizer
from transformer_jax.training.step import is_finite
from transformer_jax.training.update_rules import OPTIMIZERS


@pytest.mark.parametrize("parts", [1, 2])
def test_update_is_the_optimizers_on_the_gradient_of_the_mean_loss(parts):
    """Whatever number of micro-batches the rows are cut into."""
    state, batch = make_state(), make_batch(2)
    weights = batch["targets_segment_ids"].sum(axis=1)
    assert len(set(weights)) > 1  # else a mean of means would pass

    @jax.jit
    def expect(state):
        def mean_loss(params):
            loss_sum, weight, _ = tiny.LOSS(apply(params, batch, None, ())[0], batch)
            return loss_sum / weight

        loss, gradient = jax.value_and_grad(mean_loss)(state.params)
        updates, _ = tiny.OPTIMIZER.update(gradient, state.opt_state, state.params)
        return loss, optax.tree.norm(gradient), optax.apply_updates(state.params, updates)

    loss, gradient_norm, expected = expect(state)
    before = tiny.to_numpy(state.params)
    state, metrics = make_step(make_settings(accumulation_steps=parts))(state, batch)

    tiny.assert_trees_close(state.params, expected, rtol=1e-5)
    moved = jax.tree.map(lambda a, b: bool(np.any(a != b)), before, expected)
    assert all(jax.tree.leaves(moved))
    assert state.step == 1
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["gradient_norm"], gradient_norm, rtol=1e-5)
    assert metrics["weight"] == weights.sum()
    np.testing.assert_allclose(metrics["learning_rate"], tiny.rate(1))


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_frozen_is_in_no_norm(parts):
    batch, settings = make_batch(1), make_settings(accumulation_steps=parts)
    frozen = dict(frozen="table".__eq__, optimizer=optax.sgd(0.1))
    like = tiny.make_states(optimizer=frozen["optimizer"])
    state = like.create(jax.random.key(0), batch)
    before = tiny.to_numpy(state.params)
    state, metrics = tiny.compiled_step(state, settings, **frozen)(state, batch)

    def mean_loss(trained):
        loss_sum, weight, _ = tiny.LOSS(apply(before | trained, batch, None, ())[0], batch)
        return loss_sum / weight

    expected = optax.tree.norm(jax.grad(mean_loss)({"logits": before["logits"]}))
    np.testing.assert_allclose(metrics["gradient_norm"], expected, rtol=1e-5)
    np.testing.assert_array_equal(state.params["table"], before["table"])


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_batch_leaves_is_there_for_the_next_row_by_row(parts):
    """Whatever number of micro-batches the rows are cut into."""

    def remembering(params, batch, rng, memory):
        outputs, _ = apply(params, batch, rng, ())
        return outputs, {"read": 100 * memory["read"] + batch["inputs"][:, :1]}

    batches = [make_batch(number) for number in (1, 2, 3)]
    states = tiny.make_states(memory={"read": jax.ShapeDtypeStruct((B, 1), jnp.int32)})
    state = states.create(jax.random.key(0), batches[0])
    assert not np.any(state.memory["read"])
    step = tiny.compiled_step(state, make_settings(accumulation_steps=parts), apply=remembering)
    expected = np.zeros((B, 1), int)
    for batch in batches:
        state, _ = step(state, batch)
        expected = 100 * expected + batch["inputs"][:, :1]
        np.testing.assert_array_equal(state.memory["read"], expected)


@pytest.mark.parametrize("parts", [1, 2])
def test_each_part_of_each_step_has_dropout_of_its_own_which_repeats_with_the_state(parts):
    keys = set()

    def watched(params, batch, rng, memory):
        jax.debug.callback(lambda data: keys.add(tuple(data.tolist())), jax.random.key_data(rng))
        return tiny.with_dropout(params, batch, rng, memory)

    step = make_step(make_settings(accumulation_steps=parts), watched)
    for _ in range(2):
        state = make_state()
        for n in range(2):
            state, _ = step(state, make_batch(n))
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert len(keys) == 2 * parts


def test_the_window_sums_from_one_multiple_of_log_every_to_the_next():
    step = make_step(make_settings())
    state = make_state()
    sums = []
    for n in range(1, 8):
        state, metrics = step(state, make_batch(n))
        sums.append((float(metrics["loss"] * metrics["weight"]), float(metrics["weight"])))
        loss, weight = np.sum(sums[(n - 1) // 3 * 3 :], axis=0)
        np.testing.assert_allclose(metrics["window"]["loss"], (loss, weight), rtol=1e-5)
        assert metrics["window"]["gradient_norm"][1] == (n - 1) % 3 + 1
        tiny.assert_trees_equal(metrics["window"], state.window)


def test_a_finished_window_ends_when_log_every_changes():
    state = make_state()
    for n in range(4):
        state, _ = make_step(make_settings(log_every=4))(state, make_batch(n))
    _, metrics = make_step(make_settings(log_every=3))(state, make_batch(4))
    assert float(metrics["window"]["gradient_norm"][1]) == 1


def test_the_step_compiles_once_and_takes_its_state():
    step = make_step(make_settings(log_every=7))  # one that no other test has called
    first = state = make_state()
    for n in range(3):
        state, _ = step(state, make_batch(n))
    assert step._cache_size() == 1
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.params))


def test_parameters_that_an_update_makes_infinite_are_seen_though_the_loss_was_finite():
    """Loss and gradient norm are those of the parameters before it."""
    optimizer = optax.sgd(jnp.inf)
    state = tiny.make_states(optimizer=optimizer).create(jax.random.key(0), make_batch(0))
    step = tiny.compiled_step(state, make_settings(), optimizer=optimizer)
    _, metrics = step(state, make_batch(1))
    assert np.isfinite([metrics["loss"], metrics["gradient_norm"]]).all()
    assert not metrics["finite_parameters"] and not is_finite(metrics)


def faulty(params, batch, rng, memory):
    outputs, _ = apply(params, batch, rng, ())
    outputs = outputs._replace(values=outputs.values * batch["fault"])
    return outputs, jax.tree.map(lambda leaf: leaf + batch["inputs"][:, :1], memory)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_skipped_step_leaves_no_trace_but_in_the_counts_of_steps(parts):
    memory = jax.ShapeDtypeStruct((B, 1), jnp.int32)
    state = tiny.make_states(ema=True, memory=memory).create(jax.random.key(0), make_batch(0))
    settings = make_settings(accumulation_steps=parts, ema_decay=0.9, bad_step="skip")
    step = tiny.compiled_step(state, settings, apply=faulty)
    for fault in (1.0, 1.0, np.nan):
        before = tiny.to_numpy(state)
        batch = make_batch(1) | {"fault": np.full((B, 1, 1), fault, np.float32)}
        state, metrics = step(state, batch)
    assert metrics["bad"] and metrics["finite_parameters"] and not is_finite(metrics)
    after = tiny.to_numpy(state)
    (_, rates), *_ = optax.tree.get_all_with_path(after["opt_state"], "ScaleByScheduleState")
    assert after["step"] == rates.count == 3
    for name in ("params", "ema_params", "rng", "memory", "window"):
        tiny.assert_trees_equal(after[name], before[name])
    tiny.assert_trees_equal(adam_state(after["opt_state"]), adam_state(before["opt_state"]))
    np.testing.assert_array_equal(np.isnan(after["recent"][:4]), [False, False, True, True])


def test_an_average_of_steps_weighs_them_by_their_own_rates_also_behind_skipped_ones():
    """The weight of `schedule_free` is the square of a rate that has Adam's correction."""

    def schedule(count):
        return 0.01 * (count + 1)

    settings = dataclasses.replace(tiny.OF_OPTIMIZER, name="schedule_free")
    transform = make_optimizer(settings, schedule, lambda: tiny.ROLES)
    state = tiny.make_states(optimizer=transform).create(jax.random.key(0), make_batch(0))
    changes = dict(optimizer=transform, schedule=schedule, apply=faulty)
    step = tiny.compiled_step(state, make_settings(bad_step="skip"), **changes)
    for fault in (np.nan, np.nan, np.nan, 1.0):
        batch = make_batch(1) | {"fault": np.full((B, 1, 1), fault, np.float32)}
        state, _ = step(state, batch)
    average = optax.tree.get(state.opt_state, "ScheduleFreeState")
    expected = 0.04**2 * (1 - settings.beta2**4)
    np.testing.assert_allclose(average.weight_sum, expected, rtol=1e-5)


def test_the_moving_average_is_the_recursion_and_training_does_not_see_it():
    decay = 0.3  # more than the first three steps have of their own
    step, plain = make_step(make_settings(ema_decay=decay)), make_step(make_settings())
    state, alone = make_state(ema=True), make_state()
    average = tiny.to_numpy(state.params)
    for n in range(8):
        state, _ = step(state, make_batch(n))
        alone, _ = plain(alone, make_batch(n))
        d = min(decay, (1 + n) / (10 + n))
        average = jax.tree.map(
            lambda ema, param, d=d: d * ema.astype(np.float64) + (1 - d) * np.array(param),
            average,
            state.params,
        )
    tiny.assert_trees_close(state.ema_params, average, rtol=1e-5, atol=1e-6)
    tiny.assert_trees_close(state.params, alone.params, rtol=1e-6, atol=1e-7)
    assert alone.ema_params is None


def test_an_average_that_the_optimizer_keeps_is_what_is_scored():
    settings = dataclasses.replace(tiny.OF_OPTIMIZER, name="schedule_free")
    transform = make_optimizer(settings, tiny.SCHEDULE, lambda: tiny.ROLES)
    average = OPTIMIZERS["schedule_free"].average
    state = tiny.make_states(optimizer=transform, ema=True).create(jax.random.key(0), make_batch(0))
    step = tiny.compiled_step(state, make_settings(), optimizer=transform, average=average)
    for n in range(3):
        state, _ = step(state, make_batch(n))
    assert average is not None and state.evaluated is state.ema_params
    tiny.assert_trees_equal(state.ema_params, jax.jit(average)(state.params, state.opt_state))
    assert not np.array_equal(state.ema_params["table"], state.params["table"])


@pytest.mark.parametrize("parts", [1, 4])
def test_a_loss_may_be_divided_by_totals_of_the_whole_batch(parts):
    """And the sums of layers are logged with its own."""

    def share(outputs, batch, settings):
        wanted = jnp.sum(jnp.square(outputs.values), axis=(1, 2)) / batch["total"][:, 0]
        weight = jnp.sum(1 / batch["rows"])
        return jnp.sum(wanted), weight, {"loss": (jnp.sum(wanted), weight)}

    def totals(batch):
        real = batch["targets_segment_ids"]
        return {"total": jnp.full((B, 1), jnp.sum(real)), "rows": jnp.full((B, 1), len(real))}

    def with_sums(params, batch, rng, memory):
        outputs, _ = apply(params, batch, rng, memory)
        rows = jnp.float32(len(batch["inputs"]))
        return outputs._replace(sums={"balance": (2 * rows, rows)}), memory

    batch, names = make_batch(4), ("loss", "balance", "gradient_norm")
    state = tiny.make_states(metrics=names).create(jax.random.key(0), batch)
    settings, loss = make_settings(accumulation_steps=parts), tiny.make_loss(share, totals)
    step = tiny.compiled_step(state, settings, loss=loss, apply=with_sums)
    values = with_sums(state.params, batch, None, ())[0].values
    expected = jnp.sum(jnp.square(values)) / batch["targets_segment_ids"].sum()
    _, metrics = step(state, batch)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    assert metrics["window"]["balance"] == (2 * B, B)
