"""Finished runs that were never run, and rows of trainings that were never made."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness.jobs import Job
from experiments.harness.results import Finished, Row
from experiments.harness.small import CONFIG
from experiments.harness.sweep import ROOT, Run

GRID = [2.0**exponent for exponent in range(-9, 0)]
INITIAL, ENTROPY = 5.5, 3.3  # nats: before training, and of a model that knows frequencies alone


def parabola(at: float, grid: Sequence[float] = GRID) -> dict[float, float]:
    """learning rate -> a loss that is least, 2, where log2 of the rate is `at`."""
    return {rate: 2 + 0.05 * (math.log2(rate) - at) ** 2 for rate in grid}


def trainings(seeds: Sequence[Mapping[float, float | None]], **more: Any) -> list[Row]:
    """Rows as of `Trainings.row`, from learning rate -> loss of each seed. more: columns."""
    return [
        {"learning_rate": rate, "seed": seed, "loss": loss}
        | {"initial": INITIAL, "unigram_entropy": ENTROPY}
        | more
        for seed, losses in enumerate(seeds)
        for rate, loss in losses.items()
    ]


def job(folder: Path, seed: int = 0, **changes: Any) -> Job:
    """A job that nobody has begun. changes: fields of its run."""
    run = Run(config=CONFIG, overrides={"seed": seed}, labels={"seed": seed}, **changes)
    return Job(folder, folder / run.id, (run,))


def finished(run: Run | dict[str, Any], rows: Any = (), **fields: Any) -> Finished:
    """A run, or one with these labels, that has left what it measured, as JSON makes it.

    fields: what else of `Finished` is not empty.
    """
    if not isinstance(run, Run):
        run = Run(config=CONFIG, overrides={}, labels=run, train=False, measure={})
    nothing: dict[str, Any] = dict(
        workdir=ROOT, record={}, results={}, metrics=[], measurements=[], measured_on={}
    )
    measured = {"measurements": json.loads(json.dumps(rows))}
    return Finished(run=run, **nothing | measured | fields)
