"""One pure training step: the gradient of a global batch, and one update of the parameters."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_map_with_path
from jaxtyping import Array, Bool, Float, Key, Shaped

from transformer_jax.devices import compiled
from transformer_jax.devices.mesh import constrain
from transformer_jax.models.family import Batch, Outputs, Params, Sums
from transformer_jax.training.losses import Loss
from transformer_jax.training.probe import Steps
from transformer_jax.training.state import State
from transformer_jax.training.update_rules import Average, map_named

# A spread is known once there are so many recent losses.
FEWEST_RECENT = 32

# params, batch, key of dropout (None: deterministic), memory -> outputs, and the memory after it
ApplyFn = Callable[[Params, Batch, Key[Array, ""] | None, Any], tuple[Outputs, Any]]
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
    evaluate_at: Steps
    checkpoint_every: int  # 0: only after the last step
    checkpoint_at: Steps
    diagnostics_every: int  # 0: never
    diagnostics_at: Steps
    sharpness_every: int  # 0: never
    probes: tuple[tuple[str, int], ...]  # those besides, and the interval of each (0: never)
    bad_step: str  # "stop", "skip" or "restore"
    spike_threshold: float | None  # robust deviations; None: no spike is bad


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TrainStep:
    """One update of the parameters, by the gradient of the mean loss of the global batch.

    Sums over micro-batches are divided once, by the weight of the whole batch, so that the update
    does not depend on `accumulation_steps` (dropout apart: each micro-batch has a key of its own).
    The loss knows the totals of the whole batch at each of them.

    With `ema_decay` the state's moving average takes in the new parameters: ema <- d ema + (1 - d)
    params, d = min(ema_decay, (1 + n) / (10 + n)), where n updates have been made before this one.
    An `average` of the optimizer's own is in its place.

    What is `frozen`, by its path, has a gradient of 0, which is in no norm and costs nothing.
    """

    settings: TrainSettings
    loss: Loss
    apply: ApplyFn
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    average: Average | None = None
    frozen: Callable[[str], bool] = lambda name: False

    def program(self, layout: Any) -> StepFn:
        """The step as one program. The state is donated: the one passed in is gone after the call.

        layout: a `State` of the arrays' shardings, which the next state keeps.
        """
        return jax.jit(
            self.step,
            donate_argnums=0,
            # The numbers lie where that of the step does: whole on every device.
            out_shardings=(layout, layout.step),
            compiler_options=compiled.options(layout.step.mesh),
        )

    def step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """The next state, and what the step says of itself.

        The metrics are the `loss`, `weight` (as target tokens), `gradient_norm` (before clipping)
        and `learning_rate` of this step; `finite_parameters`, whether the new ones are;
        `recent_median` and `recent_deviation`, the `spread` of the losses before this one; and
        `window`: name -> (sum, weight) since the last multiple of `log_every`. Where bad steps
        are skipped or spikes are bad, `bad` says whether this step is. A skipped one leaves no
        trace, in moments and memory either, but in the counts by which learning rates go.
        """
        log_every = self.settings.log_every
        gradient_sum, (loss_sum, weight, sums), memory = self._summed_gradient(state, batch)
        gradient = jax.tree.map(lambda g: g / weight, gradient_sum)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.params)
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
            ema_params=self._averaged(state, params, opt_state),
            opt_state=opt_state,
            rng=state.rng,
            memory=memory,
            window=window,
            recent=state.recent.at[state.step % state.recent.size].set(loss_mean),
        )
        metrics = {
            "loss": loss_mean,
            "weight": weight,
            "gradient_norm": gradient_norm,
            "learning_rate": self.schedule(state.step),
            "finite_parameters": all_finite(params),
            "recent_median": median,
            "recent_deviation": deviation,
            "window": window,
        }
        bad_step, threshold = self.settings.bad_step, self.settings.spike_threshold
        if bad_step != "skip" and threshold is None:
            return next_state, metrics
        bad = ~all_finite((loss_mean, gradient_norm, params))
        bad |= loss_mean > median + (threshold or jnp.inf) * deviation
        if bad_step == "skip":
            left_out = dataclasses.replace(
                state,
                step=next_state.step,
                window=jax.tree.map(lambda x: jnp.where(starts_window, 0.0, x), state.window),
                recent=state.recent.at[state.step % state.recent.size].set(jnp.nan),
            )
            schedule: Any = optax.ScaleByScheduleState

            def chosen(path: Any, old: Any, new: Any) -> Any:
                # The latter is the count by which schedule_free knows the rate of a step.
                counts = isinstance(new, schedule) or keystr(path[-1:]) == ".step_count"
                return new if counts else jnp.where(bad, old, new)

            next_state = tree_map_with_path(
                chosen, left_out, next_state, is_leaf=lambda node: isinstance(node, schedule)
            )
            finite = all_finite(next_state.params)
            metrics |= {"finite_parameters": finite, "window": next_state.window}
        return next_state, metrics | {"bad": bad}

    def _averaged(self, state: State, params: Params, opt_state: optax.OptState) -> Params | None:
        if self.average is not None:
            return self.average(params, opt_state)
        if not (decay := self.settings.ema_decay):
            return None
        share = jnp.maximum(1 - decay, 9 / (10 + state.step))  # of the new parameters, 1 - d
        return optax.incremental_update(params, state.ema_params, share)

    def _summed_gradient(
        self, state: State, batch: Batch
    ) -> tuple[Params, tuple[Array, Array, Sums], Any]:
        """The gradient of the summed loss, the sums, and the memory of all rows."""

        def stopped(name: str, param: Array) -> Array:
            return jax.lax.stop_gradient(param) if self.frozen(name) else param

        def summed(params: Params, batch: Batch, rng: Key[Array, ""], memory: Any) -> Any:
            outputs, memory = self.apply(map_named(stopped, params), batch, rng, memory)
            result = self.loss(outputs, batch)
            return result[0], (result, memory)

        gradient = jax.grad(summed, has_aux=True)
        whole = self.loss.with_totals(batch), state.dropout_key, state.memory
        if self.settings.accumulation_steps == 1:
            total, (sums, memory) = gradient(state.params, *whole)
            return total, sums, memory

        def add(total, part):
            new, aux = gradient(state.params, *part)
            return jax.tree.map(jnp.add, total, new), aux

        zeros = jax.tree.map(jnp.zeros_like, state.params)
        parts = micro_batches(*whole, self.settings.accumulation_steps)
        total, (sums, memory) = jax.lax.scan(add, zeros, parts)
        sums = jax.tree.map(lambda parts: jnp.sum(parts, axis=0), sums)
        return total, sums, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), memory)


def is_finite(metrics: Metrics) -> bool:
    """Whether the loss, the gradient norm and the new parameters of a step are finite."""
    numbers = metrics["loss"], metrics["gradient_norm"]
    return all(map(math.isfinite, numbers)) and bool(metrics["finite_parameters"])


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


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number of a tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def micro_batches(
    batch: Batch, rng: Key[Array, ""], memory: Any, parts: int
) -> tuple[dict[str, Shaped[Array, "parts rows ..."]], Key[Array, "parts"], Any]:
    """Equal parts of a batch, with a dropout key and the memory of each; one has the step's key."""
    keys = rng[None] if parts == 1 else jax.random.split(rng, parts)

    def cut_rows(x: Array) -> Array:
        return x.reshape(parts, len(x) // parts, *x.shape[1:])

    cut, memories = jax.tree.map(cut_rows, (batch, memory))
    return jax.tree.map(lambda rows: constrain(rows, None, "batch", "length"), cut), keys, memories
