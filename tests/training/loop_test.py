"""The loop on a tiny model: what is logged, evaluated and saved, and how it ends."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.tiny import (
    LOSS,
    MESH,
    METRICS,
    apply,
    assert_trees_equal,
    init,
    make_batch,
    make_loss,
    make_settings,
    make_state,
    make_step,
    rate,
    to_device,
    to_numpy,
    with_dropout,
)
from transformer_jax.models.family import Outputs
from transformer_jax.training import cross_entropy, loop
from transformer_jax.training import state as train_state
from transformer_jax.training.step import make_train_step


class Streams:
    def __init__(self, position=0):
        self.position = position

    def __next__(self):
        self.position += 1
        return make_batch(self.position)

    def get_state(self):
        return {"0": {"position": self.position}}


class Log:
    def __init__(self):
        self.lines = {}
        self.texts = {}
        self.batches = {}

    def write(self, step, values):
        assert step not in self.lines  # each step once
        self.lines[step] = values

    def keep_batch(self, step, batch):
        assert step not in self.batches
        self.batches[step] = to_numpy(batch)

    def progress(self, step, text):
        self.texts[step] = text

    def repeatable(self):
        return {
            step: {name: value for name, value in line.items() if not name.startswith("time/")}
            for step, line in self.lines.items()
        }


class Saved:
    def __init__(self):
        self.checkpoints = {}
        self.scheduled = {}

    def __call__(self, step, state, *, streams, metrics, scheduled):
        assert step not in self.checkpoints
        assert step == state.step
        self.checkpoints[step] = to_numpy(state), streams, metrics
        self.scheduled[step] = scheduled


def evaluate(params):
    loss_sum, weight, _ = LOSS(apply(params, make_batch(1000), None, ())[0], make_batch(1000))
    return {"loss": float(loss_sum / weight)}


def diagnose(before, after, batch):
    raise AssertionError("nobody asked")


def loop_step(log_every=3, accumulation_steps=1, ema_decay=0.0):
    settings = make_settings(
        log_every=log_every, accumulation_steps=accumulation_steps, ema_decay=ema_decay
    )
    return make_step(settings, with_dropout)


def no_sharpness(state, batch):
    raise AssertionError("the curvature was read, and is off")


def fit(
    settings,
    state=None,
    streams=None,
    *,
    stop=lambda: False,
    train_step=None,
    diagnose=diagnose,
    seconds_at_peak=None,
    sharpness=no_sharpness,
    sample=lambda step, params: None,
):
    log, saved = Log(), Saved()
    outcome = loop.fit(
        state or make_state(ema=settings.ema_decay > 0),
        streams or Streams(),
        settings=settings,
        mesh=MESH,
        train_step=train_step
        or loop_step(settings.log_every, settings.accumulation_steps, settings.ema_decay),
        evaluate=evaluate,
        diagnose=diagnose,
        save=saved,
        log=log,
        stop=stop,
        seconds_at_peak=seconds_at_peak,
        sharpness=sharpness,
        means=LOSS.means,
        sample=sample,
    )
    return outcome, log, saved


def test_the_loop_equals_a_plain_loop_of_steps():
    settings = make_settings()
    outcome, log, _ = fit(settings)
    state, step = make_state(), loop_step()
    for n in range(1, 11):
        state, metrics = step(state, make_batch(n))
        if n in (3, 6, 9, 10):
            loss_sum, weight = metrics["window"]["loss"]
            assert log.lines[n]["train/loss"] == pytest.approx(float(loss_sum / weight), rel=1e-6)
            assert log.lines[n]["train/learning_rate"] == pytest.approx(rate(n))
    assert_trees_equal(outcome.state, state)
    assert (outcome.status, outcome.step) == ("finished", 10)
    assert list(log.texts) == list(range(1, 11))


def test_lines_evaluations_and_checkpoints_come_at_their_steps():
    outcome, log, saved = fit(make_settings(log_every=4, evaluate_every=3, checkpoint_every=6))
    trained = [step for step, line in log.lines.items() if "train/loss" in line]
    validated = [step for step, line in log.lines.items() if "validation/loss" in line]
    assert trained == [4, 8, 10]
    assert validated == [3, 6, 9, 10]
    assert list(log.lines) == sorted(log.lines)
    assert list(saved.checkpoints) == [6, 10]
    for step, (state, streams, metrics) in saved.checkpoints.items():
        assert streams == {"0": {"position": step}}
        assert metrics == {"validation/loss": evaluate(state["params"])["loss"]}
        assert metrics["validation/loss"] == log.lines[step]["validation/loss"]
    assert set(log.lines[4]) == {
        "train/loss",
        "train/token_loss",
        "train/perplexity",
        "train/accuracy",
        "train/gradient_norm",
        "train/learning_rate",
        "time/seconds",
        "time/tokens_per_second",
    }


def test_a_checkpoint_carries_no_scores_of_other_parameters():
    _, _, saved = fit(make_settings(evaluate_every=4, checkpoint_every=3))
    scores = {step: bool(metrics) for step, (_, _, metrics) in saved.checkpoints.items()}
    assert scores == {3: False, 6: False, 9: False, 10: True}


def test_sharpness_is_asked_of_the_state_after_a_step_and_its_batch():
    asked = {}

    def sharpness(state, batch):
        asked[int(state.step)] = to_numpy(batch)
        return {"sharpness": float(state.step)}

    settings = make_settings(log_every=100, sharpness_every=4)
    _, log, _ = fit(settings, sharpness=sharpness)
    assert list(asked) == [4, 8]
    for step, batch in asked.items():
        assert_trees_equal(batch, to_numpy(make_batch(step)))
        assert log.lines[step]["diagnostics/sharpness"] == step


def test_utilization_is_the_time_at_peak_over_the_time_that_steps_took():
    _, log, _ = fit(make_settings(), seconds_at_peak=1e-3)
    lines = {step: line for step, line in log.lines.items() if "train/loss" in line}
    assert list(lines) == [3, 6, 9, 10]
    for before, (step, line) in zip((0, 3, 6, 9), lines.items(), strict=True):
        batches = [make_batch(n) for n in range(before + 1, step + 1)]
        outputs = [apply(make_state().params, batch, None, ())[0] for batch in batches]
        tokens = sum(float(LOSS(*pair)[1]) for pair in zip(outputs, batches, strict=True))
        seconds = tokens / line["time/tokens_per_second"]
        share = len(batches) * 1e-3 / seconds
        assert line["time/model_flops_utilization"] == pytest.approx(share)


def test_samples_are_of_the_parameters_that_are_evaluated():
    sampled = {}
    settings = make_settings(evaluate_every=4, checkpoint_every=4, ema_decay=0.9)

    def sample(step, params):
        sampled[step] = to_numpy(params)

    _, _, saved = fit(settings, sample=sample)
    assert list(sampled) == [4, 8, 10]
    for step, params in sampled.items():
        assert_trees_equal(params, saved.checkpoints[step][0]["ema_params"])


def test_without_intervals_only_the_last_step_is_evaluated_and_saved():
    _, log, saved = fit(make_settings(log_every=100))
    assert list(log.lines) == list(saved.checkpoints) == [10]
    assert {"train/loss", "validation/loss"} <= set(log.lines[10])


def test_the_moving_average_is_what_is_evaluated():
    settings = make_settings(evaluate_every=5, checkpoint_every=5, ema_decay=0.9)
    _, log, saved = fit(settings)
    for step, (state, _, metrics) in saved.checkpoints.items():
        expected = evaluate(state["ema_params"])["loss"]
        assert log.lines[step]["validation/loss"] == metrics["validation/loss"] == expected
        assert expected != evaluate(state["params"])["loss"]
    assert list(saved.checkpoints) == [5, 10]


@pytest.mark.parametrize(("cut", "ema_decay"), [(3, 0.0), (4, 0.9)])
def test_a_resumed_run_equals_an_unbroken_one(cut, ema_decay):
    settings = make_settings(
        log_every=3, evaluate_every=4, accumulation_steps=2, ema_decay=ema_decay
    )
    whole, whole_log, _ = fit(settings)

    asked = itertools.count(1)
    _, first_log, saved = fit(settings, stop=lambda: next(asked) == cut)
    arrays, streams, _ = saved.checkpoints[cut]
    restored = to_device(arrays)
    rest, rest_log, _ = fit(settings, restored, Streams(streams["0"]["position"]))

    assert_trees_equal(rest.state, whole.state)
    assert first_log.repeatable() | rest_log.repeatable() == whole_log.repeatable()
    assert not first_log.lines.keys() & rest_log.lines.keys()


def test_stop_saves_this_step_and_ends():
    asked = itertools.count(1)
    outcome, log, saved = fit(make_settings(), stop=lambda: next(asked) == 5)
    assert (outcome.status, outcome.step) == ("preempted", 5)
    assert list(saved.checkpoints) == [5]
    assert list(log.lines) == [3]
    assert list(log.texts) == [1, 2, 3, 4, 5]


def test_stop_at_the_last_step_is_a_finished_run():
    outcome, _, saved = fit(make_settings(), stop=lambda: False)
    assert outcome.status == "finished"
    asked = itertools.count(1)
    at_end, _, at_end_saved = fit(make_settings(), stop=lambda: next(asked) == 10)
    assert at_end.status == "finished"
    assert list(at_end_saved.checkpoints) == list(saved.checkpoints) == [10]


@pytest.mark.parametrize(
    ("every", "stop_at", "scheduled"),
    [
        (4, 6, {4: True, 6: False}),
        (4, 8, {4: True, 8: True}),
        (4, None, {4: True, 8: True, 10: False}),
        (5, None, {5: True, 10: True}),
        (0, None, {10: False}),
    ],
)
def test_scheduled_are_the_checkpoints_that_a_longer_unbroken_run_saves_too(
    every, stop_at, scheduled
):
    asked = itertools.count(1)
    settings = make_settings(checkpoint_every=every)
    _, _, saved = fit(settings, stop=lambda: next(asked) == stop_at)
    assert saved.scheduled == scheduled


def broken_from(bad_step, part):
    """A step whose loss or gradient norm is not a number from `bad_step` on."""
    step = loop_step()

    def broken(state, batch):
        state, metrics = step(state, batch)
        bad = state.step >= bad_step
        return state, metrics | {part: jnp.where(bad, jnp.nan, metrics[part])}

    return broken


@pytest.mark.parametrize("part", ["loss", "gradient_norm"])
@pytest.mark.parametrize("bad_step", [1, 6, 7, 8, 10])
def test_a_loss_that_is_not_finite_ends_training_and_is_never_saved(bad_step, part):
    settings = make_settings(checkpoint_every=3)
    outcome, log, saved = fit(settings, train_step=broken_from(bad_step, part))
    assert (outcome.status, outcome.step) == ("diverged", bad_step)
    assert list(saved.checkpoints) == [step for step in (3, 6, 9) if step < bad_step]
    assert all(step < bad_step for step in log.lines)


@pytest.mark.parametrize("bad_step", [3, 4])
def test_parameters_that_are_not_finite_are_never_saved_though_the_loss_still_was(bad_step):
    """An update that overflows: loss and gradient norm are those of the parameters before it."""

    def schedule(count):
        return jnp.where(count + 1 < bad_step, 0.01, jnp.inf)

    optimizer = optax.sgd(schedule)
    key, batch = jax.random.key(0), make_batch(0)
    state = train_state.create(init, optimizer, key, batch, METRICS, ema=False, mesh=MESH)
    step = make_train_step(
        make_settings(),
        loss=LOSS,
        apply=apply,
        optimizer=optimizer,
        schedule=schedule,
        layout=train_state.layout(state),
    )
    seen = {}

    def watched(state, batch):
        state, metrics = step(state, batch)
        seen[int(state.step)] = to_numpy(metrics)
        return state, metrics

    outcome, _, saved = fit(make_settings(checkpoint_every=1), state, train_step=watched)
    assert np.isfinite([seen[bad_step]["loss"], seen[bad_step]["gradient_norm"]]).all()
    assert (outcome.status, outcome.step) == ("diverged", bad_step)
    assert list(saved.checkpoints) == list(range(1, bad_step))


# Spikes


def first_bias(params, batch, rng, memory):
    return Outputs(params["logits"]["bias"][0]), memory


def value_loss(outputs, batch, settings):
    """The loss is what the batch says, whatever the parameters are."""
    values = batch["values"] + 0.0 * outputs.values
    loss_sum, weight = jnp.sum(values), jnp.float32(values.size)
    return loss_sum, weight, dict.fromkeys(cross_entropy.METRICS, (loss_sum, weight))


class Values(Streams):
    """Batches of which each makes the loss of its step."""

    def __init__(self, values, position=0):
        super().__init__(position)
        self.values = values

    def __next__(self):
        self.position += 1
        return {"values": np.full(2, self.values[self.position - 1], np.float32)}


def fit_values(values, state=None, position=0, **arguments):
    settings = make_settings(steps=len(values), log_every=50)
    step = make_step(settings, first_bias, make_loss(value_loss))
    streams = Values(values, position)
    return fit(settings, state, streams, train_step=step, **arguments)


def spikes_of(values):
    """Step -> loss, median and deviation, by the definition, in float64."""
    found = {}
    for n, value in enumerate(values):
        recent = np.asarray(values[max(n - 128, 0) : n], np.float64)
        if len(recent) < 32:
            continue
        median = np.median(recent)
        deviation = 1.4826 * np.median(np.abs(recent - median))
        deviation = max(deviation, 1e-3 * abs(median))
        if value > median + 6 * deviation:
            found[n + 1] = [value, median, deviation]
    return found


def noisy_losses(seed=0, steps=300):
    """A falling loss with noise; rises in it of all sizes, and falls."""
    rng = np.random.default_rng(seed)
    values = 3 + 0.5 * np.exp(-np.arange(steps) / 100) + rng.normal(0, 0.03, steps)
    places = rng.choice(steps, 24, replace=False)
    values[places] += rng.uniform(-1, 2, 24)
    values[20] += 10  # too early
    return values.astype(np.float32)


def logged_spikes(*logs):
    return {
        step: [line[f"spike/{name}"] for name in ("loss", "median", "deviation")]
        for log in logs
        for step, line in log.lines.items()
        if "spike/loss" in line
    }


def test_spikes_are_losses_far_above_the_recent_ones_and_their_batches_are_kept():
    values = noisy_losses()
    _, log, _ = fit_values(values)
    expected = spikes_of(values)
    assert 5 < len(expected) < 24
    found = logged_spikes(log)
    assert list(found) == list(expected) and 21 not in found
    for step, spike in found.items():
        np.testing.assert_allclose(spike, expected[step], rtol=1e-4)
    assert list(log.batches) == list(expected)
    for step, batch in log.batches.items():
        np.testing.assert_array_equal(batch["values"], values[step - 1])


def test_a_resumed_run_finds_the_same_spikes_bit_for_bit():
    values = noisy_losses(1)
    whole, whole_log, _ = fit_values(values)
    position, state, logs = 0, None, []
    for cut in (40, 150, 151, 300):
        asked = itertools.count(position + 1)
        outcome, log, _ = fit_values(
            values, state, position, stop=lambda asked=asked, cut=cut: next(asked) == cut
        )
        state, position = to_device(to_numpy(outcome.state)), outcome.step
        logs.append(log)
    assert logged_spikes(*logs) == logged_spikes(whole_log) != {}
    assert [step for log in logs for step in log.batches] == list(whole_log.batches)
    assert_trees_equal(state, whole.state)


@pytest.mark.parametrize(("rise", "spikes"), [(0.0, False), (0.005, False), (0.007, True)])
def test_a_loss_that_hardly_differs_makes_no_spikes(rise, spikes):
    values = np.full(100, 2.0, np.float32)
    values[60] *= 1 + rise
    _, log, _ = fit_values(values)
    assert list(logged_spikes(log)) == [61] * spikes


# Diagnoses


def test_diagnoses_see_the_step_and_join_its_line():
    calls = []

    def diagnose(before, after, batch):
        calls.append(to_numpy((before, after, batch)))
        return {"decoder/depths": np.arange(3.0)}

    settings = make_settings(log_every=4, evaluate_every=8, diagnostics_every=4, checkpoint_every=1)
    _, log, saved = fit(settings, diagnose=diagnose)
    expected = (4, 8)
    assert len(calls) == len(expected)
    for (before, after, batch), step in zip(calls, expected, strict=True):
        assert_trees_equal(before, saved.checkpoints[step - 1][0]["params"])
        assert_trees_equal(after, saved.checkpoints[step][0]["params"])
        assert_trees_equal(batch, make_batch(step))
        line = log.lines[step]
        np.testing.assert_array_equal(line["diagnostics/decoder/depths"], np.arange(3.0))
        assert "train/loss" in line
    assert "validation/loss" in log.lines[8]
    assert not [name for name in log.lines[10] if name.startswith("diagnostics/")]


def test_diagnoses_change_nothing_else():
    plain, plain_log, _ = fit(make_settings())
    outcome, log, _ = fit(make_settings(diagnostics_every=2), diagnose=lambda *_: {"a": 1.0})
    assert_trees_equal(outcome.state, plain.state)
    without = {
        step: {name: value for name, value in line.items() if name != "diagnostics/a"}
        for step, line in log.repeatable().items()
    }
    assert {step: line for step, line in without.items() if line} == plain_log.repeatable()


def test_a_bad_step_is_not_diagnosed():
    outcome, _, _ = fit(
        make_settings(diagnostics_every=3), train_step=broken_from(3, "loss"), diagnose=diagnose
    )
    assert (outcome.status, outcome.step) == ("diverged", 3)


def test_a_run_that_has_its_steps_does_nothing():
    state = dataclasses.replace(make_state(), step=jnp.array(10, jnp.int32))
    outcome, log, saved = fit(make_settings(), state)
    assert (outcome.status, outcome.step) == ("finished", 10)
    assert not log.lines and not saved.checkpoints


def test_the_next_step_is_dispatched_before_the_last_one_is_read():
    events = []
    step = loop_step()

    def watched(state, batch):
        state, metrics = step(state, batch)
        events.append(("dispatched", int(state.step)))
        return state, metrics

    log = Log()
    log.progress = lambda step, text: events.append(("read", step))
    loop.fit(
        make_state(),
        Streams(),
        settings=make_settings(steps=4, checkpoint_every=2),
        mesh=MESH,
        train_step=watched,
        evaluate=evaluate,
        diagnose=diagnose,
        means=LOSS.means,
        save=Saved(),
        log=log,
        stop=lambda: False,
    )
    d, r = "dispatched", "read"
    assert events == [(d, 1), (d, 2), (r, 1), (r, 2), (d, 3), (d, 4), (r, 3), (r, 4)]


def test_the_first_step_is_shown_to_be_compiled(phases):
    fit(make_settings(evaluate_every=4))
    assert phases == ["Compiling the training step"]


def test_an_error_in_the_data_ends_training():
    class Broken(Streams):
        def get_state(self):
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        fit(make_settings(), streams=Broken())


def test_a_line_of_the_log_says_what_was_drawn_of_each_set_up_to_its_step():
    class Mixed(Streams):
        def get_state(self):
            return {str(i): {"drawn": [self.position, i]} for i in range(3)}

    _, log, _ = fit(make_settings(log_every=2), streams=Mixed())
    for step in (2, 4):
        assert (log.lines[step]["drawn/0"], log.lines[step]["drawn/1"]) == (3 * step, 3)
    _, log, _ = fit(make_settings(log_every=2))
    assert not any(name.startswith("drawn") for name in log.lines[2])
