"""Losses of an optimizer: of a search of learning rate and weight decay, and of fresh seeds."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import rates
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config


def measure(
    config: Config, workdir: Path, *, start: float, most: int, decays: Sequence[float], fresh: int
) -> list[dict[str, Any]]:
    """Rows {kind, learning_rate, weight_decay, seed, loss}, of "fresh" seeds also {half}: the loss
    after half of the steps.

    With seed 0 the rate is searched with the first weight decay, as of `rates.searched`, and then
    the other decays with the best rate; fresh seeds train with the best of all.
    """
    run = build(config)

    @functools.cache
    def trainings(decay: float) -> Trainings:
        optimizer = dataclasses.replace(run.optimizer, weight_decay=decay)
        return Trainings(dataclasses.replace(run, optimizer=optimizer))

    search = rates.searched(trainings(decays[0]).loss, start, most, fresh=0)
    rows = [row | {"weight_decay": decays[0]} for row in search]
    rate = min(rows, key=_rank)["learning_rate"]
    for decay in decays[1:]:
        loss = trainings(decay).loss(rate, 0)
        rows.append(rows[0] | {"learning_rate": rate, "weight_decay": decay, "loss": loss})
    best = min(rows, key=_rank)
    for seed in range(1, fresh + 1):
        half, loss = _losses(trainings(best["weight_decay"]), rate, seed)
        rows.append(best | {"kind": "fresh", "seed": seed, "half": half, "loss": loss})
    return rows


def _losses(trainings: Trainings, rate: float, seed: int) -> tuple[float, float]:
    """After half of the steps and after all; NaN where training has diverged before."""
    last = trainings.run.train.steps
    losses = {last // 2: math.nan, last: math.nan}
    for update in trainings.steps(rate, seed):
        if update.step in losses:
            losses[update.step] = trainings.validation_loss(update.state.evaluated)
    return losses[last // 2], losses[last]


def _rank(row: dict[str, Any]) -> float:
    return row["loss"] if math.isfinite(row["loss"]) else math.inf
