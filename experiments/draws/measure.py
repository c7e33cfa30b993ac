"""Losses of a draw by learning rate, and what its layers do before and after training."""

import math
from pathlib import Path
from typing import Any

import jax

from experiments.harness import layers, rates
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config


def measure(
    config: Config, workdir: Path, *, start: float, most: int, fresh: int
) -> list[dict[str, Any]]:
    """Rows of `rates.searched`, and for each layer of the fresh seeds what `layers.look` says on
    the first batch, of kind "layer": at step 0 and after the last step of a training.
    """
    trainings = Trainings(build(config))
    run = trainings.run
    look = jax.jit(lambda params, batch: layers.look(run, params, batch))
    layer_rows: list[dict[str, Any]] = []

    def train(rate: float, seed: int) -> float:
        loss, first = math.nan, None
        for update in trainings.steps(rate, seed):
            first = update.batch if first is None else first
            if seed and update.step in (0, run.train.steps):
                metrics = look(update.state.params, first)
                layer_rows.extend(layers.rows(metrics, seed=seed, step=update.step))
            if update.step == run.train.steps:
                loss = trainings.validation_loss(update.state.params)
        return loss

    return rates.searched(train, start, most, fresh) + layer_rows
