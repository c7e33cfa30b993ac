"""Losses of an arm at its best learning rate, what its layers do and what is lost without them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from experiments.harness import layers, rates
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place

_WARM_UP = 0.1  # of the steps
_ROWS = 32  # of validation, on which layers are looked at


def measure(
    config: Config, workdir: Path, *, start: float, most: int, fresh: int, trial: int
) -> list[dict[str, Any]]:
    """Rows of `rates.searched`, and for each layer of the fresh seeds, of kind "layer", what
    `layers.look` says after training, with "drop": what leaving it out adds to the loss.

    trial: the steps of the trainings that the rate is chosen by.
    """
    trainings = Trainings(build(config))
    run = trainings.run
    scored, _ = run.data.split("validation").batches[0]
    batch = place(run.mesh, {name: rows[:_ROWS] for name, rows in scored.items()})
    look = jax.jit(
        lambda params: (
            layers.look(run, params, batch) | {"drop": layers.losses_without(run, params, batch)}
        )
    )
    shown: list[dict[str, Any]] = []

    def train(rate: float, seed: int) -> float:
        steps = run.train.steps if seed else trial
        for made in trainings.steps(line_to_zero(rate, steps, round(_WARM_UP * steps)), seed):
            if made.step < steps:
                continue
            if seed:
                seen = jax.device_get(look(made.state.params))
                for layer, values in enumerate(zip(*seen.values(), strict=True), 1):
                    at = {"kind": "layer", "seed": seed, "layer": layer}
                    shown.append(at | dict(zip(seen, values, strict=True)))
            return trainings.validation_loss(made.state.params)
        return math.nan

    return rates.searched(train, start, most, fresh) + shown


def line_to_zero(peak: float, steps: int, warm_up: int) -> Callable[[int], float]:
    """The rate of each step from 1: a linear warm-up, and a line that would be 0 at the next step
    after the last."""

    def rate(step: int) -> float:
        return peak * min(step / warm_up, (steps + 1 - step) / (steps + 1 - warm_up))

    return rate
