"""One pure training step, and the loop that orders steps, logging, evaluation and checkpoints."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from absl import logging
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.devices import hosts
from transformer_jax.devices.mesh import Streams, constrain, place_ahead
from transformer_jax.evaluation.metrics import means
from transformer_jax.training import losses as objectives
from transformer_jax.training.losses import ApplyFn, Batch, Loss, Sums
from transformer_jax.training.state import State

# What a step adds to the logging window.
WINDOW_METRICS = (*objectives.METRICS, "gradient_norm")
# Nats: a plateau is at most so far below the unigram entropy, a divergence so far above ln V.
PLATEAU_MARGIN = 0.1
DIVERGENCE_MARGIN = 1.0
# A loss spikes that is so many robust deviations above the median of the recent losses, of which
# there have to be enough.
SPIKE_DEVIATIONS = 6.0
FEWEST_RECENT = 32

Metrics = dict[str, Any]
StepFn = Callable[[State, Batch], tuple[State, Metrics]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How long to train and what to do on the way; intervals are in steps."""

    steps: int
    accumulation_steps: int  # micro-batches that a global batch is cut into
    ema_decay: float  # of the moving average of the parameters (0: none)
    log_every: int
    evaluate_every: int  # 0: only after the last step
    checkpoint_every: int  # 0: only after the last step
    diagnostics_every: int  # 0: never

    def __post_init__(self):
        for name in ("steps", "accumulation_steps", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"train.ema_decay={self.ema_decay} does not lie in [0, 1)")


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


def judge(
    token_loss: float, *, unigram_entropy: float, vocab_size: int
) -> Literal["finished", "plateaued", "diverged"]:
    """What became of a run whose objective is tokens, and that has made all its steps.

    diverged: the loss is more than `DIVERGENCE_MARGIN` above ln V, the loss of whoever knows
      nothing, or it is no number.
    plateaued: it is more than the unigram entropy - `PLATEAU_MARGIN`: all that was learnt is how
      often each token occurs, as of a Post-LN model that is too deep for its learning rate.

    Args:
      token_loss: mean of -log p(target) in nats a token, without label smoothing, over the last
        logging window: the steps since the last multiple of `log_every` before the end.
      unigram_entropy: of the targets, in nats a token.
      vocab_size: V, the tokens that the model chooses from.
    """
    if not token_loss <= math.log(vocab_size) + DIVERGENCE_MARGIN:
        return "diverged"
    return "plateaued" if token_loss > unigram_entropy - PLATEAU_MARGIN else "finished"


def make_train_step(
    settings: TrainSettings,
    *,
    objective: Loss,
    apply_fn: ApplyFn,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    layout: Any,
) -> StepFn:
    """Compiles `train_step`. The state is donated: the one passed in is gone after the call.

    layout: a `State` of the arrays' shardings, which the next state keeps.
    """
    step = functools.partial(
        train_step,
        objective=objective,
        apply_fn=apply_fn,
        optimizer=optimizer,
        schedule=schedule,
        accumulation_steps=settings.accumulation_steps,
        ema_decay=settings.ema_decay,
        log_every=settings.log_every,
    )
    # The numbers lie where that of the step does: whole on every device.
    return jax.jit(step, donate_argnums=0, out_shardings=(layout, layout.step))


def train_step(
    state: State,
    batch: Batch,
    *,
    objective: Loss,
    apply_fn: ApplyFn,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    accumulation_steps: int,
    ema_decay: float,
    log_every: int,
) -> tuple[State, Metrics]:
    """One update of the parameters, by the gradient of the mean loss of the global batch.

    Sums over micro-batches are divided once, by the weight of the whole batch, so that the update
    does not depend on `accumulation_steps` (dropout apart: each micro-batch has a key of its own).

    With `ema_decay` the state's moving average takes in the new parameters: ema <- d ema + (1 - d)
    params, d = min(ema_decay, (1 + n) / (10 + n)), where n updates have been made before this one.

    Returns the next state, and as metrics the `loss`, `weight` (target tokens), `gradient_norm`
    (before clipping) and `learning_rate` of this step; `finite_parameters`, whether the new ones
    are; `recent_median` and `recent_deviation`, the `spread` of the losses before this one; and
    `window`: name -> (sum, weight) since the last multiple of `log_every`.

    Raises:
      ValueError: when the rows of the batch cannot be cut into `accumulation_steps` equal parts.
    """
    loss = functools.partial(_loss, objective, apply_fn)
    gradient_sum, (loss_sum, weight, sums) = _summed_gradient(
        loss, state.params, batch, state.dropout_key, accumulation_steps
    )
    gradient = jax.tree.map(lambda g: g / weight, gradient_sum)
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    gradient_norm = optax.tree.norm(gradient)
    params = optax.apply_updates(state.params, updates)
    loss_mean = loss_sum / weight
    median, deviation = spread(state.recent)

    sums = {**sums, "gradient_norm": (gradient_norm, jnp.ones(()))}
    # The second case: a window that was finished when the run resumed with another log_every.
    counted = state.window["gradient_norm"][1]
    starts_window = (state.step % log_every == 0) | (counted >= log_every)
    window = jax.tree.map(
        lambda total, new: jnp.where(starts_window, 0.0, total) + new, state.window, sums
    )
    next_state = State(
        step=state.step + 1,
        params=params,
        ema_params=_moving_average(state, params, ema_decay) if ema_decay else None,
        opt_state=opt_state,
        rng=state.rng,
        window=window,
        recent=state.recent.at[state.step % state.recent.size].set(loss_mean),
    )
    metrics = {
        "loss": loss_mean,
        "weight": weight,
        "gradient_norm": gradient_norm,
        "learning_rate": schedule(state.step),
        "finite_parameters": _all_finite(params),
        "recent_median": median,
        "recent_deviation": deviation,
        "window": window,
    }
    return next_state, metrics


def spread(recent: Float[Array, "R"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Median of the losses that are there (not NaN), and their robust standard deviation.

    That is 1.4826 times the median absolute deviation, which of normal values is their standard
    deviation (Rousseeuw and Croux 1993, section 1). It is taken for a thousandth of the median at
    least: losses that hardly differ, as those of one batch again and again, differ by rounding,
    which is 1e-7 of a float32 and 4e-3 of a bfloat16, but much less in a mean over tokens. It is
    infinite, so that nothing spikes, while there are fewer losses than `FEWEST_RECENT`.
    """
    median = jnp.nanmedian(recent)
    deviation = 1.4826 * jnp.nanmedian(jnp.abs(recent - median))
    enough = jnp.sum(~jnp.isnan(recent)) >= FEWEST_RECENT
    least = 1e-3 * jnp.abs(median)
    return median, jnp.where(enough, jnp.maximum(deviation, least), jnp.inf)


def _all_finite(tree: Any) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _moving_average(state: State, params: Any, decay: float) -> Any:
    share = jnp.maximum(1 - decay, 9 / (10 + state.step))  # of the new parameters, 1 - d
    return optax.incremental_update(params, state.ema_params, share)


def _loss(objective: Loss, apply_fn: ApplyFn, params, batch, rng):
    loss_sum, weight, sums = objective(apply_fn(params, batch, rng), batch)
    return loss_sum, (loss_sum, weight, sums)


def _summed_gradient(
    loss: Callable, params: Any, batch: Batch, rng: Key[Array, ""], accumulation_steps: int
) -> tuple[Any, tuple[Array, Array, Sums]]:
    """Gradient of the summed loss, and what `loss` returns beside it, over all micro-batches."""
    gradient = jax.grad(loss, has_aux=True)
    if accumulation_steps == 1:
        return gradient(params, batch, rng)

    def add(total, part):
        new, aux = gradient(params, *part)
        return jax.tree.map(jnp.add, total, new), aux

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, aux = jax.lax.scan(add, zeros, micro_batches(batch, rng, accumulation_steps))
    return total, jax.tree.map(lambda parts: jnp.sum(parts, axis=0), aux)


def micro_batches(
    batch: Batch, rng: Key[Array, ""], parts: int
) -> tuple[dict[str, Int[Array, "parts rows _"]], Key[Array, "parts"]]:
    """A batch cut into equal parts, and the dropout key of each; one part has the step's own key.

    Raises ValueError where the rows cannot be cut.
    """
    keys = rng[None] if parts == 1 else jax.random.split(rng, parts)
    cut = jax.tree.map(functools.partial(_cut_rows, parts), batch)
    return jax.tree.map(lambda rows: constrain(rows, None, "batch", "length"), cut), keys


def _cut_rows(parts: int, array: Array) -> Array:
    rows = array.shape[0]
    if rows % parts:
        raise ValueError(
            f"a batch of {rows} rows cannot be cut into {parts} equal micro-batches: "
            "make data.batch_size a multiple of train.accumulation_steps"
        )
    return array.reshape(parts, rows // parts, *array.shape[1:])


def fit(
    state: State,
    streams: Streams,
    *,
    settings: TrainSettings,
    mesh: Mesh,
    train_step: StepFn,
    evaluate: Callable[[Any], dict[str, float]],
    diagnose: Callable[[Any, Any, Batch], dict[str, Any]],
    save: Callable[..., None],
    log: Log,
    stop: Callable[[], bool],
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
    save: called as save(step, state, streams=..., metrics=..., scheduled=...), every
      `checkpoint_every` steps, after the last, and before a stop; `streams` is the state of the
      streams after this step's batch, `metrics` holds the scores of exactly these parameters (empty
      where they were not evaluated), and `scheduled` says whether the step is a multiple of
      `checkpoint_every`. A last step that is none is not, since a longer run would not save it.
    stop: asked after every step; once true, training saves and ends as "preempted".
    """
    step = int(state.step)
    report = _Report(settings, log)
    newest = None  # batch and metrics of the last step, while nothing of them is read
    try:
        with contextlib.closing(place_ahead(streams, mesh)) as batches:
            while step < settings.steps:
                batch, streams_after = next(batches)
                diagnosing = _due(step + 1, settings.diagnostics_every)
                # A copy, since the step takes its state.
                before = jax.tree.map(jnp.copy, state.params) if diagnosing else None
                previous = newest
                state, metrics = train_step(state, batch)
                newest = batch, metrics
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
                if not (evaluating or diagnosing or saving):
                    continue
                values, newest = report.read(step, *newest), None
                if diagnosing:
                    found = diagnose(before, state.params, batch)
                    values |= _prefixed("diagnostics", found)
                scores = _prefixed("validation", evaluate(state.evaluated)) if evaluating else {}
                _write(log, step, values | scores)
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

    def __init__(self, settings: TrainSettings, log: Log):
        self._settings = settings
        self._log = log
        self._started = time.perf_counter()
        self.restart_clock()

    def restart_clock(self):
        self._lap_started = time.perf_counter()
        self._lap_tokens = 0.0

    def read(self, step: int, batch: Batch, metrics: Metrics) -> dict[str, float]:
        """Waits for the step; returns what its line of the log holds, empty when none is due."""
        metrics = jax.device_get(metrics)
        loss, gradient_norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        finite_parameters = bool(metrics["finite_parameters"])
        if not (math.isfinite(loss) and math.isfinite(gradient_norm) and finite_parameters):
            raise _Diverged(step, loss, gradient_norm, finite_parameters)
        now = time.perf_counter()
        self._lap_tokens += float(metrics["weight"])
        tokens_per_second = self._lap_tokens / (now - self._lap_started)
        self._log.progress(step, f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s")
        line = self._spike(step, batch, metrics)
        if not (_due(step, self._settings.log_every) or step == self._settings.steps):
            return line
        self.restart_clock()
        return line | {
            **_prefixed("train", means(metrics["window"])),
            "train/learning_rate": float(metrics["learning_rate"]),
            "time/seconds": now - self._started,
            "time/tokens_per_second": tokens_per_second,
        }

    def _spike(self, step: int, batch: Batch, metrics: Metrics) -> dict[str, float]:
        """What the log says of a loss that spikes, nothing of any other."""
        names = {"loss": "loss", "median": "recent_median", "deviation": "recent_deviation"}
        spike = {name: float(metrics[metric]) for name, metric in names.items()}
        if not spike["loss"] > spike["median"] + SPIKE_DEVIATIONS * spike["deviation"]:
            return {}
        self._log.keep_batch(step, hosts.whole(batch))
        return _prefixed("spike", spike)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": value for name, value in values.items()}


def _write(log: Log, step: int, values: dict[str, Any]):
    if values:
        log.write(step, values)
