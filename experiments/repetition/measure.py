"""Losses of trainings on some rows of a text, read again and again, by weight decay."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.harness import lab
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.models.family import Params

_SEED_OF_ROWS = 0  # whose order says which rows of the text are read
_FRESH = 100  # the first seed that chooses nothing


def measure(
    config: Config,
    workdir: Path,
    *,
    rate: float,
    batches: int,
    decays: Sequence[float],
    standard: float,
    seeds: int,
    fresh: int,
    readings: int,
) -> list[dict[str, Any]]:
    """Rows of trainings on the same `batches` batches of rows, each epoch in another order.

    Of kind "grid" all decays with each of the seeds, and "fresh" the standard decay and the best
    one, by the mean loss of the grid, with fresh seeds. Of each training:

    loss, least: on validation, after the last step and the least of all readings; NaN where it
      diverged. train: the mean loss of training since the reading before the last one.
    norm: of all parameters, at the end.

    And its readings, of kind "reading": step, loss, train.
    """
    run = build(config)

    @functools.cache
    def trainings(decay: float) -> Trainings:
        optimizer = dataclasses.replace(run.optimizer, weight_decay=decay)
        return Trainings(dataclasses.replace(run, optimizer=optimizer))

    first = itertools.islice(trainings(decays[0]).batches(_SEED_OF_ROWS), batches)
    rows = lab.joined(list(first))
    size = len(next(iter(rows.values()))) // batches
    every = max(1, run.train.steps // readings)

    def train(kind: str, decay: float, seed: int) -> list[dict[str, Any]]:
        trainer, curve, losses = trainings(decay), [], []
        ended = {"loss": math.nan, "norm": math.nan}
        for update in trainer.steps(rate, seed, lab.epochs(rows, size, seed)):
            if update.step:
                losses.append(float(update.metrics["loss"]))
            if update.step and (update.step % every == 0 or update.step == run.train.steps):
                loss = trainer.validation_loss(update.state.params)
                curve.append({"step": update.step, "loss": loss, "train": float(np.mean(losses))})
                losses.clear()
            if update.step == run.train.steps:
                ended = {"loss": curve[-1]["loss"], "norm": _norm(update.state.params)}
        labels = {"decay": decay, "seed": seed}
        least = min((each["loss"] for each in curve), default=math.nan)
        last = {"least": least, "train": curve[-1]["train"] if curve else math.nan}
        readings = [{"kind": "reading", **labels, **each} for each in curve]
        return [{"kind": kind, **labels, **ended, **last}, *readings]

    records = [row for x in decays for seed in range(seeds) for row in train("grid", x, seed)]
    pair = dict.fromkeys([standard, best_decay(records)])
    for decay, seed in itertools.product(pair, range(_FRESH, _FRESH + fresh)):
        records += train("fresh", decay, seed)
    return records


def best_decay(rows: Sequence[Mapping[str, Any]]) -> float:
    """The decay of the grid with the least mean loss at the end."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        if row["kind"] == "grid":
            losses.setdefault(row["decay"], []).append(row["loss"])
    means = {decay: float(np.mean(cell)) for decay, cell in losses.items()}
    return min(means, key=lambda decay: means[decay] if math.isfinite(means[decay]) else math.inf)


def _norm(params: Params) -> float:
    squares = [float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(jax.device_get(params))]
    return math.sqrt(sum(squares))
