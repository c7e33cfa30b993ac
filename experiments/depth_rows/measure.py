"""Losses of an arm at its best learning rate, what its layers do and what is lost without them."""

import math
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
    layer_rows: list[dict[str, Any]] = []

    def train(rate: float, seed: int) -> float:
        steps = run.train.steps if seed else trial
        line = rates.schedule(rate, steps, round(_WARM_UP * steps), "linear")
        for update in trainings.steps(line, seed):
            if update.step < steps:
                continue
            if seed:
                layer_rows.extend(layers.rows(look(update.state.params), seed=seed))
            return trainings.validation_loss(update.state.params)
        return math.nan

    return rates.searched(train, start, most, fresh) + layer_rows
