"""Readings of the curvature while a model is trained on one batch, or on parts of it."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.recipe import Batch
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.sharpness import make_sharpness

SEED = 0
NUMBERS = ("loss", "sharpness", "preconditioned_sharpness", "gradient_alignment")


def measure(
    config: Config, workdir: Path, *, learning_rate: float, rows: int, every: int
) -> list[dict[str, Any]]:
    """A row for each multiple of `every` steps, with the numbers after so many updates.

    All of them are NaN from the step on at which training diverged.

    loss: of the step's own batch, before its update.
    sharpness, preconditioned_sharpness, gradient_alignment: as of `sharpness.measure`, on the
      whole batch, the first of the data; so all trainings are read alike.

    Args:
      rows: of the whole batch, that each step is made on: all of them, or some drawn anew.
    """
    run = build(config)
    trainings, read = Trainings(run), make_sharpness(run)
    whole = next(trainings.batches(SEED))
    everything = rows == run.data.settings.batch_size
    batches = itertools.repeat(whole) if everything else _parts(whole, rows)
    read_on = place(run.mesh, whole)
    readings = {
        step: {"step": step} | dict.fromkeys(NUMBERS, math.nan)
        for step in range(every, run.train.steps + 1, every)
    }
    for update in trainings.steps(learning_rate, SEED, batches):
        if update.step in readings:
            metrics = {"loss": update.metrics["loss"], **read(update.state, read_on)}
            readings[update.step] |= {name: float(metrics[name]) for name in NUMBERS}
    return list(readings.values())


def _parts(whole: Batch, rows: int) -> Iterator[Batch]:
    """So many rows of a batch, drawn anew each time, without end."""
    draws = np.random.default_rng(SEED)
    while True:
        indices = draws.choice(len(whole["targets"]), rows, replace=False)
        yield {name: values[indices] for name, values in whole.items()}
