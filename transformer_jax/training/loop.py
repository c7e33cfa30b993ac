"""The loop that orders steps, logging, probes and checkpoints."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

from transformer_jax.devices.mesh import Placed
from transformer_jax.models.family import Batch, Sums
from transformer_jax.process import hosts
from transformer_jax.runs.log import RunLog, named
from transformer_jax.training.probe import Observation, Probe, is_due, is_listed
from transformer_jax.training.state import RECENT, State
from transformer_jax.training.step import Metrics, StepFn, TrainSettings, all_finite, is_finite

# A loss spikes that is so many robust deviations above the median of the recent losses.
SPIKE_DEVIATIONS = 6.0


class Outcome(NamedTuple):
    """How training ended. `step`: the last one made or, of "diverged", the first bad one."""

    state: State
    status: Literal["finished", "preempted", "diverged"]
    step: int


def fit(
    state: State,
    batches: Generator[Placed],
    *,
    settings: TrainSettings,
    train_step: StepFn,
    report: "Report",
    probes: Sequence[Probe],
    save: Callable[..., None],
    stop: Callable[[], bool],
) -> Outcome:
    """Trains from `state.step` to `settings.steps`.

    A step's numbers are fetched once the next step is on its way, so that the device never waits,
    except before a probe or a checkpoint. A bad step that is not skipped ends training before
    anything is saved that came after it, and so does a moment that is not finite.

    Args:
      batches: of `place_ahead`, which is closed at the end; they begin where `state` ended.
      save: called as save(step, state, streams=..., values=..., scheduled=...), every
        `checkpoint_every` steps, after the last, and before a stop. `streams` is the state of the
        streams after this step's batch, `values` is what the log has of exactly this step, and
        `scheduled` says whether the step is a multiple of `checkpoint_every`: a longer run saves it
        too. It is called at the steps of `checkpoint_at` besides.
      stop: asked after every step; once true, training saves and ends as "preempted".
    """
    step = int(state.step)
    try:
        with contextlib.closing(batches):
            while step < settings.steps:
                batch, streams = next(batches)
                step += 1
                due = [probe for probe in probes if probe.due(step)]
                # A copy, since the step takes its state.
                copied = any(probe.needs_before for probe in due)
                before = jax.tree.map(jnp.copy, state.params) if copied else None
                state, metrics = train_step(state, batch)
                report.add(Update(step, batch, metrics, streams))

                last = step == settings.steps
                stopping = stop() and not last
                scheduled = is_due(step, settings.checkpoint_every)
                saving = last or stopping or scheduled or is_listed(step, settings.checkpoint_at)
                if not (due or saving):
                    continue
                values = report.read()
                if saving and not jax.jit(all_finite)((state.ema_params, state.opt_state)):
                    raise _Diverged(step, "a moment or a moving average is not finite")
                values |= measured(due, Observation(state, before, batch))
                report.write(step, values)
                if saving:
                    save(step, state, streams=streams, values=values, scheduled=scheduled)
                if stopping:
                    return Outcome(state, "preempted", step)
    except _Diverged as diverged:
        logging.error("Training stopped: %s", diverged)
        return Outcome(state, "diverged", diverged.step)
    return Outcome(state, "finished", step)


def measured(due: Sequence[Probe], observation: Observation) -> dict[str, Any]:
    """What the probes that are due say, by the names of the log."""
    measures = (named(probe.name, probe.measure(observation)) for probe in due)
    return {name: value for measure in measures for name, value in measure.items()}


class Update(NamedTuple):
    """A step that may still be on its way."""

    step: int
    batch: Batch
    metrics: Metrics
    streams: dict[str, Any]  # their state after the batch


class Report:
    """Reads the numbers of one step after another and logs them.

    A loss that spikes (see `spread`) is logged at its step as "spike/loss", with the "spike/median"
    and "spike/deviation" that it is compared with, and the log keeps its batch. A step that is
    skipped is logged as "bad_step/number".
    """

    def __init__(
        self,
        settings: TrainSettings,
        means: Callable[[Sums], dict[str, float]],
        log: RunLog,
        seconds_at_peak: float | None = None,
    ):
        """means: the sums of a logging window -> the numbers that its line of the log holds.

        seconds_at_peak: what the model's FLOPs of a step take at the devices' peak. Its share of
        the time that a step took is logged as "time/model_flops_utilization" (None: not known).
        """
        self._settings = settings
        self._means = means
        self._log = log
        self._seconds_at_peak = seconds_at_peak
        self._newest: Update | None = None  # while nothing of it is read
        self._started = time.perf_counter()
        self._restart_clock()

    def add(self, update: Update) -> None:
        """Takes the newest step, and logs the one before it where that has not been read."""
        previous, self._newest = self._newest, update
        if previous is None:
            self._restart_clock()  # compiling, measuring and saving are not training
        else:
            self.write(previous.step, self._values(previous))

    def read(self) -> dict[str, Any]:
        """What a line of the log says of the newest step; empty when none is due."""
        assert self._newest is not None
        newest, self._newest = self._newest, None
        return self._values(newest)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Writes the line of a step, if it says anything."""
        if values:
            self._log.write(step, values)

    def _restart_clock(self) -> None:
        self._lap_started = time.perf_counter()
        self._lap_tokens = 0.0
        self._lap_steps = 0

    def _values(self, update: Update) -> dict[str, Any]:
        """What a line of the log says of a step, which this waits for."""
        step, metrics = update.step, jax.device_get(update.metrics)
        values = self._skipped(step, metrics) | self._spike(step, update.batch, metrics)
        now = time.perf_counter()
        self._lap_tokens += float(metrics["weight"])
        self._lap_steps += 1
        lap_seconds = now - self._lap_started
        tokens_per_second = self._lap_tokens / lap_seconds
        loss = float(metrics["loss"])
        self._log.progress(step, f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s")
        if not (is_due(step, self._settings.log_every) or step == self._settings.steps):
            return values
        if self._seconds_at_peak is not None:
            share = self._lap_steps * self._seconds_at_peak / lap_seconds
            values["time/model_flops_utilization"] = share
        self._restart_clock()
        _, counted = metrics["window"]["gradient_norm"]  # 0: all steps were skipped
        return values | {
            **named("train", self._means(metrics["window"]) if counted else {}),
            "train/learning_rate": float(metrics["learning_rate"]),
            "time/seconds": now - self._started,
            "time/tokens_per_second": tokens_per_second,
            **named("drawn", _draws(update.streams)),
        }

    def _skipped(self, step: int, metrics: Metrics) -> dict[str, int]:
        """What the log says of a step that was skipped; empty for any other.

        Raises _Diverged for a bad step that was not skipped, and where that does not help, as the
        parameters were not finite before it or all recent steps were skipped.
        """
        if not metrics.get("bad", not is_finite(metrics)):
            return {}
        stuck = step > RECENT and math.isnan(metrics["recent_median"])
        if self._settings.bad_step == "skip" and metrics["finite_parameters"] and not stuck:
            return {"bad_step/number": step}
        numbers = [f"{name} {float(metrics[name]):g}" for name in metrics if name != "window"]
        raise _Diverged(step, ", ".join(numbers))

    def _spike(self, step: int, batch: Batch, metrics: Metrics) -> dict[str, Any]:
        """What the log says of a loss that spikes; empty for any other."""
        names = {"loss": "loss", "median": "recent_median", "deviation": "recent_deviation"}
        spike = {name: float(metrics[metric]) for name, metric in names.items()}
        if not spike["loss"] > spike["median"] + SPIKE_DEVIATIONS * spike["deviation"]:
            return {}
        self._log.keep_batch(step, hosts.whole(batch))
        return named("spike", spike)


class _Diverged(Exception):
    def __init__(self, step: int, what: str):
        super().__init__(f"step {step} is bad: {what}")
        self.step = step


def _draws(streams: dict[str, Any]) -> dict[str, float]:
    """How many examples of each set of a mixture this host has read, by the set's number."""
    draws = [state["drawn"] for state in streams.values() if "drawn" in state]
    return {str(number): sum(counts) for number, counts in enumerate(zip(*draws, strict=True))}
