"""The loop that orders steps, logging, evaluation and checkpoints."""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import Mesh

from transformer_jax.devices.mesh import Streams, place_ahead
from transformer_jax.process import hosts
from transformer_jax.training.losses import Batch, means
from transformer_jax.training.state import State
from transformer_jax.training.step import Metrics, StepFn, TrainSettings

# A loss spikes that is so many robust deviations above the median of the recent losses.
SPIKE_DEVIATIONS = 6.0


class Log(Protocol):
    """Where numbers go, and the batches to look at."""

    def write(self, step: int, values: dict[str, Any]) -> None: ...

    def keep_batch(self, step: int, batch: Batch) -> None: ...

    def progress(self, step: int, text: str) -> None: ...


class Outcome(NamedTuple):
    """How training ended. `step`: the last one made or, of "diverged", the first bad one."""

    state: State
    status: Literal["finished", "preempted", "diverged"]
    step: int


def fit(
    state: State,
    streams: Streams,
    *,
    settings: TrainSettings,
    mesh: Mesh,
    train_step: StepFn,
    evaluate: Callable[[Any], dict[str, float]],
    diagnose: Callable[[Any, Any, Batch], dict[str, Any]],
    sharpness: Callable[[State, Batch], dict[str, Any]] = lambda state, batch: {},
    save: Callable[..., None],
    log: Log,
    stop: Callable[[], bool],
    seconds_at_peak: float | None = None,
    sample: Callable[[int, Any], None] = lambda step, params: None,
) -> Outcome:
    """Trains from `state.step` to `settings.steps`; `streams` must stand where `state` left them.

    The numbers of a step are fetched once the next step is on its way, so that the device never
    waits, except before an evaluation, a diagnosis or a checkpoint. A loss, gradient or parameter
    that is not finite ends training before anything is saved that came after it.

    A loss that spikes (see `spread`) is logged at its step as "spike/loss", with the "spike/median"
    and "spike/deviation" that it is compared with, and the log keeps its batch.

    evaluate: parameters -> {"loss": ...}, asked of `state.evaluated`; logged, and handed to `save`,
      as "validation/loss".
    diagnose: parameters before a step, those after it, and its batch -> numbers or vectors, logged
      as "diagnostics/..."; asked every `diagnostics_every` steps. Only then are parameters copied.
    sharpness: the state after a step and its batch -> numbers, logged likewise every
      `sharpness_every` steps.
    save: called as save(step, state, streams=..., metrics=..., scheduled=...), every
      `checkpoint_every` steps, after the last, and before a stop; `streams` is the state of the
      streams after this step's batch, `metrics` holds the scores of exactly these parameters (empty
      where they were not evaluated), and `scheduled` says whether the step is a multiple of
      `checkpoint_every`. A last step that is none is not, since a longer run would not save it.
    stop: asked after every step; once true, training saves and ends as "preempted".
    seconds_at_peak: what the model's FLOPs of a step take at the devices' peak. The share of it in
      the time that a step took is logged as "time/model_flops_utilization" (None: not known).
    sample: called with the step and the parameters that are evaluated, after each evaluation.
    """
    step = int(state.step)
    report = _Report(settings, log, seconds_at_peak)
    newest = None  # what belongs to the last step, while nothing of it is read
    try:
        with contextlib.closing(place_ahead(streams, mesh)) as batches:
            while step < settings.steps:
                batch, streams_after = next(batches)
                diagnosing = _due(step + 1, settings.diagnostics_every)
                curving = _due(step + 1, settings.sharpness_every)
                # A copy, since the step takes its state.
                before = jax.tree.map(jnp.copy, state.params) if diagnosing else None
                previous = newest
                state, metrics = train_step(state, batch)
                newest = batch, metrics, streams_after
                step += 1
                if previous is None:
                    report.restart_clock()  # compiling, evaluating and saving are not training
                else:
                    _write(log, step - 1, report.read(step - 1, *previous))

                last = step == settings.steps
                stopping = stop() and not last
                evaluating = last or _due(step, settings.evaluate_every)
                scheduled = _due(step, settings.checkpoint_every)
                saving = last or stopping or scheduled
                if not (evaluating or diagnosing or curving or saving):
                    continue
                values, newest = report.read(step, *newest), None
                if diagnosing:
                    found = diagnose(before, state.params, batch)
                    values |= _prefixed("diagnostics", found)
                if curving:
                    values |= _prefixed("diagnostics", sharpness(state, batch))
                scores = _prefixed("validation", evaluate(state.evaluated)) if evaluating else {}
                _write(log, step, values | scores)
                if evaluating:
                    sample(step, state.evaluated)
                if saving:
                    save(step, state, streams=streams_after, metrics=scores, scheduled=scheduled)
                if stopping:
                    return Outcome(state, "preempted", step)
    except _Diverged as diverged:
        logging.error("Training stopped: %s", diverged)
        return Outcome(state, "diverged", diverged.step)
    return Outcome(state, "finished", step)


class _Diverged(Exception):
    def __init__(self, step: int, loss: float, gradient_norm: float, finite_parameters: bool):
        found = f"loss {loss}, gradient norm {gradient_norm}"
        found += ", finite parameters" if finite_parameters else ", parameters not finite"
        super().__init__(f"{found} at step {step}")
        self.step = step


class _Report:
    """Reads the numbers of one step after another: refuses bad ones, notes spikes and the speed."""

    def __init__(self, settings: TrainSettings, log: Log, seconds_at_peak: float | None):
        self._settings = settings
        self._log = log
        self._seconds_at_peak = seconds_at_peak
        self._started = time.perf_counter()
        self.restart_clock()

    def restart_clock(self):
        self._lap_started = time.perf_counter()
        self._lap_tokens = 0.0
        self._lap_steps = 0

    def read(
        self, step: int, batch: Batch, metrics: Metrics, streams: dict[str, Any]
    ) -> dict[str, float]:
        """Waits for the step; returns what its line of the log holds, empty when none is due.

        streams: the state of the streams after its batch.
        """
        metrics = jax.device_get(metrics)
        loss, gradient_norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        finite_parameters = bool(metrics["finite_parameters"])
        if not (math.isfinite(loss) and math.isfinite(gradient_norm) and finite_parameters):
            raise _Diverged(step, loss, gradient_norm, finite_parameters)
        now = time.perf_counter()
        self._lap_tokens += float(metrics["weight"])
        self._lap_steps += 1
        lap_seconds = now - self._lap_started
        tokens_per_second = self._lap_tokens / lap_seconds
        self._log.progress(step, f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s")
        line = self._spike(step, batch, metrics)
        if not (_due(step, self._settings.log_every) or step == self._settings.steps):
            return line
        if self._seconds_at_peak is not None:
            share = self._lap_steps * self._seconds_at_peak / lap_seconds
            line = line | {"time/model_flops_utilization": share}
        self.restart_clock()
        return line | {
            **_prefixed("train", means(metrics["window"])),
            "train/learning_rate": float(metrics["learning_rate"]),
            "time/seconds": now - self._started,
            "time/tokens_per_second": tokens_per_second,
            **_prefixed("drawn", _drawn(streams)),
        }

    def _spike(self, step: int, batch: Batch, metrics: Metrics) -> dict[str, float]:
        """What the log says of a loss that spikes, nothing of any other."""
        names = {"loss": "loss", "median": "recent_median", "deviation": "recent_deviation"}
        spike = {name: float(metrics[metric]) for name, metric in names.items()}
        if not spike["loss"] > spike["median"] + SPIKE_DEVIATIONS * spike["deviation"]:
            return {}
        self._log.keep_batch(step, hosts.whole(batch))
        return _prefixed("spike", spike)


def _drawn(streams: dict[str, Any]) -> dict[str, float]:
    """How many examples of each set of a mixture this host has read, by the set's number."""
    drawn = [state["drawn"] for state in streams.values() if "drawn" in state]
    return {str(number): sum(counts) for number, counts in enumerate(zip(*drawn, strict=True))}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _write(log: Log, step: int, values: dict[str, Any]):
    if values:
        log.write(step, values)
