"""The loop on a tiny model: what is logged, measured and saved, and how it ends."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import tiny
from tests.training.tiny import assert_trees_equal, make_batch, make_settings, to_device, to_numpy
from tests.whole.command_line import timeless
from transformer_jax.devices.mesh import place_ahead
from transformer_jax.models.family import Outputs
from transformer_jax.training import cross_entropy, loop
from transformer_jax.training.probe import Observation, Probe


class Streams:
    """batch: number -> the batch, from 1."""

    def __init__(self, position=0, batch=make_batch):
        self.position, self.batch = position, batch

    def __next__(self):
        self.position += 1
        return self.batch(self.position)

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
        return {step: timeless(line) for step, line in self.lines.items()}


class Saved:
    def __init__(self):
        self.checkpoints = {}
        self.scheduled = {}

    def __call__(self, step, state, *, streams, values, scheduled):
        assert step not in self.checkpoints
        assert step == state.step
        self.checkpoints[step] = to_numpy(state), streams, values
        self.scheduled[step] = scheduled


def validate(observation):
    batch = make_batch(1000)
    loss_sum, weight, _ = tiny.LOSS(tiny.apply(observation.state.params, batch, None, ())[0], batch)
    return {"loss": float(loss_sum / weight)}


def loop_step(settings):
    settings = make_settings(
        log_every=settings.log_every,
        accumulation_steps=settings.accumulation_steps,
        ema_decay=settings.ema_decay,
    )
    return tiny.make_step(settings, tiny.with_dropout)


def stop_at(step, first=1):
    """Says to stop when it is asked after this step."""
    steps = itertools.count(first)
    return lambda: next(steps) == step


def fit(
    settings,
    state=None,
    streams=None,
    *,
    train_step=None,
    probes=(),
    stop=lambda: False,
    seconds_at_peak=None,
    log: Any = None,
):
    log, saved = log or Log(), Saved()
    validation = Probe("validation", settings.evaluate_every, validate, last=settings.steps)
    outcome = loop.fit(
        state or tiny.make_state(ema=settings.ema_decay > 0),
        place_ahead(streams or Streams(), tiny.MESH),
        settings=settings,
        train_step=train_step or loop_step(settings),
        report=loop.Report(settings, tiny.LOSS.means, log, seconds_at_peak),
        probes=(*probes, validation),
        save=saved,
        stop=stop,
    )
    return outcome, log, saved


@pytest.mark.parametrize(
    ("every", "trained", "probed", "saved_at"),
    [
        ((4, 3, 6), [4, 8, 10], [3, 6, 9, 10], [6, 10]),
        ((100, 4, 3), [10], [4, 8, 10], [3, 6, 9, 10]),
        ((100, 0, 0), [10], [10], [10]),
        ((100, 0, 7, ("log2", 5)), [10], [10], [1, 2, 4, 5, 7, 8, 10]),
    ],
)
def test_lines_probes_and_checkpoints_come_at_their_steps(every, trained, probed, saved_at):
    names = "log_every", "evaluate_every", "checkpoint_every", "checkpoint_at"
    intervals = dict(zip(names, every, strict=False))
    _, log, saved = fit(make_settings(**intervals))
    assert [step for step, line in log.lines.items() if "train/loss" in line] == trained
    assert [step for step, line in log.lines.items() if "validation/loss" in line] == probed
    assert list(log.lines) == sorted(log.lines)
    assert list(saved.checkpoints) == saved_at
    for step, (state, streams, values) in saved.checkpoints.items():
        assert streams == {"0": {"position": step}}
        assert values == log.lines.get(step, {})
        if step in probed:
            observation = Observation(to_device(state), None, {})
            assert values["validation/loss"] == validate(observation)["loss"]
    numbers = "loss token_loss perplexity accuracy gradient_norm learning_rate".split()
    expected = {"time/seconds", "time/tokens_per_second", *(f"train/{name}" for name in numbers)}
    assert set(log.lines[trained[0]]) - {"validation/loss"} == expected


def test_utilization_is_the_time_at_peak_over_the_time_that_steps_took():
    _, log, _ = fit(make_settings(), seconds_at_peak=1e-3)
    lines = {step: line for step, line in log.lines.items() if "train/loss" in line}
    assert list(lines) == [3, 6, 9, 10]
    for before, (step, line) in zip((0, 3, 6, 9), lines.items(), strict=True):
        batches = [make_batch(n) for n in range(before + 1, step + 1)]
        tokens = sum(float(np.sum(batch["targets_segment_ids"])) for batch in batches)
        share = len(batches) * 1e-3 / (tokens / line["time/tokens_per_second"])
        assert line["time/model_flops_utilization"] == pytest.approx(share)


@pytest.mark.parametrize(("cut", "ema_decay"), [(3, 0.0), (4, 0.9)])
def test_a_resumed_run_equals_an_unbroken_one(cut, ema_decay):
    settings = make_settings(
        log_every=3, evaluate_every=4, accumulation_steps=2, ema_decay=ema_decay
    )
    whole, whole_log, _ = fit(settings)
    _, first_log, saved = fit(settings, stop=stop_at(cut))
    arrays, streams, _ = saved.checkpoints[cut]
    rest, rest_log, _ = fit(settings, to_device(arrays), Streams(streams["0"]["position"]))

    assert_trees_equal(rest.state, whole.state)
    assert first_log.repeatable() | rest_log.repeatable() == whole_log.repeatable()
    assert not first_log.lines.keys() & rest_log.lines.keys()


@pytest.mark.parametrize(
    ("every", "stop", "status", "scheduled"),
    [
        (0, 5, "preempted", {5: False}),
        (4, 6, "preempted", {4: True, 6: False}),
        (4, 8, "preempted", {4: True, 8: True}),
        (4, None, "finished", {4: True, 8: True, 10: False}),
        (5, None, "finished", {5: True, 10: True}),
        (0, 10, "finished", {10: False}),  # nothing is left to do
    ],
)
def test_a_stop_saves_its_step_and_ends(every, stop, status, scheduled):
    """Scheduled are the checkpoints that a longer unbroken run saves too."""
    outcome, log, saved = fit(make_settings(checkpoint_every=every), stop=stop_at(stop))
    last = list(scheduled)[-1]
    assert (outcome.status, outcome.step) == (status, last)
    assert saved.scheduled == scheduled
    assert list(log.lines) == [step for step in (3, 6, 9, 10) if step <= last]
    assert list(log.texts) == list(range(1, last + 1))


@pytest.mark.parametrize(
    ("bad_step", "part"),
    [(1, "loss"), (6, "finite_parameters"), (7, "loss"), (8, "gradient_norm"), (10, "loss")],
)
def test_what_is_not_finite_ends_training_and_is_never_saved(bad_step, part):
    settings, measured = make_settings(checkpoint_every=3), []
    step = loop_step(settings)

    def broken(state, batch):
        state, metrics = step(state, batch)
        value = False if part == "finite_parameters" else jnp.nan
        return state, metrics | {part: jnp.where(state.step >= bad_step, value, metrics[part])}

    probe = Probe("a", 2, lambda observed: measured.append(int(observed.state.step)) or {})
    outcome, log, saved = fit(settings, train_step=broken, probes=[probe])
    assert (outcome.status, outcome.step) == ("diverged", bad_step)
    assert list(saved.checkpoints) == [step for step in (3, 6, 9) if step < bad_step]
    assert measured == [step for step in (2, 4, 6, 8, 10) if step < bad_step]
    assert all(step < bad_step for step in log.lines)


@pytest.mark.parametrize(("field", "decay"), [("nu", 0.0), ("ema_params", 0.9)])
def test_what_shows_in_no_loss_is_never_saved(field, decay):
    """The step of a parameter whose second moment is infinite is 0 for ever."""
    settings = make_settings(checkpoint_every=3, ema_decay=decay, accumulation_steps=2)
    step = loop_step(settings)

    def broken(state, batch):
        return step(tiny.spoilt(state, field, np.inf) if state.step == 4 else state, batch)

    outcome, log, saved = fit(settings, train_step=broken)
    assert (outcome.status, outcome.step) == ("diverged", 6)
    assert list(saved.checkpoints) == [3] and list(log.lines) == [3]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outcome.state.params))


# Spikes


def first_bias(params, batch, rng, memory):
    return Outputs(params["logits"]["bias"][0]), memory


def value_loss(outputs, batch, settings):
    """The loss is what the batch says, whatever the parameters are."""
    values = batch["values"] + 0.0 * outputs.values
    loss_sum, weight = jnp.sum(values), jnp.float32(values.size)
    return loss_sum, weight, dict.fromkeys(cross_entropy.METRICS, (loss_sum, weight))


def fit_values(values, state=None, position=0, bad_step="stop", threshold=None, **arguments):
    settings = make_settings(
        steps=len(values), log_every=50, bad_step=bad_step, spike_threshold=threshold
    )
    ten = dataclasses.replace(settings, steps=10)
    step = tiny.make_step(ten, first_bias, tiny.make_loss(value_loss))
    streams = Streams(position, lambda n: {"values": np.full(2, values[n - 1], np.float32)})
    return fit(settings, state, streams, train_step=step, **arguments)


def spikes_of(values, compared=True):
    """Step -> loss, median and deviation, by the definition, in float64.

    compared: whether later losses are compared with spikes, and with what is not finite, too.
    """
    recent, spikes = np.full(128, np.nan), {}
    for step, value in enumerate(np.asarray(values, np.float64), start=1):
        known = recent[~np.isnan(recent)]
        median = np.median(known) if len(known) >= 32 else np.inf
        deviation = 1.4826 * np.median(np.abs(known - median)) if len(known) >= 32 else 0.0
        deviation = max(deviation, 1e-3 * median)
        good = value <= median + 6 * deviation and np.isfinite(value)
        if not good:
            spikes[step] = [value, median, deviation]
        recent[(step - 1) % 128] = value if good or compared else np.nan
    return spikes


def noisy_losses(steps=300):
    """A falling loss with noise; rises in it of all sizes, and falls."""
    rng = np.random.default_rng(0)
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
    """A resumed run finds the same ones, bit for bit."""
    values = noisy_losses()
    whole, whole_log, _ = fit_values(values)
    expected, spikes = spikes_of(values), logged_spikes(whole_log)
    assert 5 < len(expected) < 24
    assert list(spikes) == list(expected) and 21 not in spikes
    for step, spike in spikes.items():
        np.testing.assert_allclose(spike, expected[step], rtol=1e-4)
    assert list(whole_log.batches) == list(expected)
    for step, batch in whole_log.batches.items():
        np.testing.assert_array_equal(batch["values"], values[step - 1])

    position, state, logs = 0, None, []
    for cut in (40, 150, 151, 300):
        outcome, log, _ = fit_values(values, state, position, stop=stop_at(cut, position + 1))
        state, position = to_device(to_numpy(outcome.state)), outcome.step
        logs.append(log)
    assert logged_spikes(*logs) == spikes
    assert [step for log in logs for step in log.batches] == list(whole_log.batches)
    assert_trees_equal(state, whole.state)


@pytest.mark.parametrize(("rise", "spikes"), [(0.0, False), (0.005, False), (0.007, True)])
def test_a_loss_that_hardly_differs_makes_no_spikes(rise, spikes):
    values = np.full(100, 2.0, np.float32)
    values[60] *= 1 + rise
    _, log, _ = fit_values(values)
    assert list(logged_spikes(log)) == [61] * spikes


def test_bad_steps_are_skipped_and_noted_and_no_mean_has_them():
    values = noisy_losses()
    values[[7, 45, 250]] = np.nan, np.inf, -np.inf
    values[100:150] = np.nan  # all of a logging window
    outcome, log, _ = fit_values(values, bad_step="skip", threshold=6.0)
    bad = list(spikes_of(values, compared=False))
    noted = [line["bad_step/number"] for line in log.lines.values() if "bad_step/number" in line]
    assert outcome.status == "finished" and noted == bad and len(bad) > 57
    for end in range(50, 301, 50):
        good = [values[step - 1] for step in range(end - 49, end + 1) if step not in bad]
        mean = pytest.approx(np.mean(good, dtype=np.float64), rel=1e-5) if good else None
        assert log.lines[end].get("train/loss") == mean
        assert log.lines[end]["train/learning_rate"] == pytest.approx(tiny.rate(end))


@pytest.mark.parametrize("bad_step", ["stop", "skip", "restore"])
def test_training_ends_at_a_bad_step_or_where_no_step_is_good(bad_step):
    values = np.full(200, 2.0, np.float32)
    values[40:] = np.nan if bad_step == "skip" else 3.0
    outcome, log, saved = fit_values(values, bad_step=bad_step, threshold=6.0)
    step = 41 + 128 if bad_step == "skip" else 41
    assert (outcome.status, outcome.step) == ("diverged", step)
    assert not saved.checkpoints and max(log.lines, default=0) < step


# Probes


def test_probes_see_the_step_and_join_its_line():
    records = {"before": {}, "after": {}}

    def before(observation):
        records["before"][int(observation.state.step)] = to_numpy(observation.before)
        return {"depths": np.arange(3.0)}

    def after(observation):
        step = int(observation.state.step)
        records["after"][step] = to_numpy(observation.state), to_numpy(observation.batch)
        assert observation.before is None
        return {"step": step}

    settings = make_settings(log_every=4, evaluate_every=8, checkpoint_every=1)
    probes = [Probe("a", 4, before, needs_before=True), Probe("b", 3, after, last=5)]
    outcome, log, saved = fit(settings, probes=probes)
    assert list(records["before"]) == [4, 8] and list(records["after"]) == [3, 5, 6, 9]
    for step, params in records["before"].items():
        assert_trees_equal(params, saved.checkpoints[step - 1][0]["params"])
        np.testing.assert_array_equal(log.lines[step]["a/depths"], np.arange(3.0))
        assert "train/loss" in log.lines[step]
    for step, (state, batch) in records["after"].items():
        assert_trees_equal(state, saved.checkpoints[step][0])
        assert_trees_equal(batch, make_batch(step))
        assert log.lines[step] == {"b/step": step}
    assert list(log.lines[8])[-2:] == ["a/depths", "validation/loss"]
    # They change nothing else.
    plain, plain_log, _ = fit(make_settings(log_every=4, evaluate_every=8))
    assert_trees_equal(outcome.state, plain.state)
    without = {
        step: {name: value for name, value in line.items() if name[:2] not in ("a/", "b/")}
        for step, line in log.repeatable().items()
    }
    assert {step: line for step, line in without.items() if line} == plain_log.repeatable()


def test_the_next_step_is_dispatched_before_the_last_one_is_read():
    events, settings = [], make_settings(steps=4, checkpoint_every=2)
    step = loop_step(settings)

    def watched(state, batch):
        state, metrics = step(state, batch)
        events.append(("dispatched", int(state.step)))
        return state, metrics

    log: Any = Log()
    log.progress = lambda step, text: events.append(("read", step))
    fit(settings, train_step=watched, log=log)
    d, r = "dispatched", "read"
    assert events == [(d, 1), (d, 2), (r, 1), (r, 2), (d, 3), (d, 4), (r, 3), (r, 4)]


def test_a_line_of_the_log_says_what_was_drawn_of_each_set_up_to_its_step():
    class Mixed(Streams):
        def get_state(self):
            return {str(i): {"drawn": [self.position, i]} for i in range(3)}

    _, log, _ = fit(make_settings(log_every=4), streams=Mixed())
    for step in (4, 8):
        assert (log.lines[step]["drawn/0"], log.lines[step]["drawn/1"]) == (3 * step, 3)
    _, log, _ = fit(make_settings(log_every=4))
    assert not any(name.startswith("drawn") for name in log.lines[4])
