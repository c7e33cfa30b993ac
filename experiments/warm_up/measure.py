"""Validation losses by learning rate; on the way the size of updates, and the curvature."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.harness.trainings import Trainings, Update
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection import kernels, observed
from transformer_jax.inspection.sharpness import make_sharpness, threshold
from transformer_jax.models.family import Batch, Model, Params

# Steps after which something is read, counted from the end of a burn-in.
READINGS = (1, 10, 50, 100)
NUMBERS = ("angle", "sharpness", "preconditioned_sharpness", "edge")
# A branch is dead whose variance over tokens is below this share of the residual stream's.
DEAD = 0.01


def measure(
    config: Config, workdir: Path, *, learning_rates: list[float], seed: int, curvature: bool
) -> list[dict[str, Any]]:
    """A row for each learning rate, as of `Trainings.row`, with

    curvature: as it was asked for.
    angle/STEP: in radians, by which the step turned the kernels of a layer, mean over layers.
    sharpness/STEP, preconditioned_sharpness/STEP: with `curvature`, as of `sharpness.measure`.
    edge/STEP: with it, the latter as a share of the threshold at the learning rate of that step,
      which is not the peak's.
    dead: the share of the sublayers whose branch is dead after the last step.

    What a training did not come to, or was not asked for, is NaN.
    """
    trainings = Trainings(build(config))
    run, burn_in = trainings.run, trainings.run.optimizer.burn_in_steps
    look = _look(trainings, curvature)
    dead = jax.jit(lambda params, batch: dead_branches(run.model, params, batch))
    rows = []
    for rate in learning_rates:
        metrics = {f"{name}/{step}": math.nan for step in READINGS for name in NUMBERS}
        metrics["dead"] = math.nan
        before: list[Params] = []

        def watch(update: Update, metrics: Any = metrics, before: Any = before) -> None:
            step = update.step - burn_in
            if step in READINGS:
                numbers = look(update, before.pop())
                metrics.update({f"{name}/{step}": value for name, value in numbers.items()})
            if step + 1 in READINGS:
                before.append(jax.tree.map(jnp.copy, update.state.params))
            if update.step == run.train.steps:
                metrics["dead"] = float(dead(update.state.params, update.batch))

        row = trainings.row(rate, seed, watch)
        rows.append(row | {"curvature": curvature} | metrics)
    return rows


def dead_branches(model: Model, params: Params, batch: Batch) -> Float[Array, ""]:
    """The share of the stack's sublayers whose branch is nearly the same for all tokens."""
    activations = observed.observe(model, params, batch)[1]["decoder"]

    def over_tokens(x: Float[Array, "n B T D"]) -> Float[Array, "n"]:
        real = activations.real[None, :, :, None]
        return jnp.mean(jnp.var(x, axis=(1, 2), where=real), axis=-1)

    return jnp.mean(over_tokens(activations.branches) < DEAD * over_tokens(activations.inputs))


def _look(trainings: Trainings, curvature: bool) -> Callable[[Update, Params], dict[str, float]]:
    """(what a step made, the parameters before it) -> the numbers that are read after it."""
    run = trainings.run
    turned = jax.jit(lambda old, new: kernels.update(old, new, run.roles)["decoder"].angle.mean())
    read, limit = make_sharpness(run), threshold(run.optimizer.beta1)

    def look(update: Update, before: Params) -> dict[str, float]:
        metrics = {"angle": float(turned(before, update.state.params))}
        if curvature:
            numbers = {
                name: float(value) for name, value in read(update.state, update.batch).items()
            }
            met = numbers["preconditioned_sharpness"]
            metrics["sharpness"], metrics["preconditioned_sharpness"] = numbers["sharpness"], met
            metrics["edge"] = float(update.metrics["learning_rate"]) * met / limit
        return metrics

    return look
