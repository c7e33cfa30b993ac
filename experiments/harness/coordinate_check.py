"""How activations grow with a model in the first steps, by rule: measured, and as slopes."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness import results
from experiments.harness.results import Row
from experiments.harness.trainings import Trainings
from transformer_jax.tools import coordinate_check as coordinates

_STEPS = 10


def sizes(trainings: Trainings, rate: float, seeds: int) -> list[dict[str, Any]]:
    """Trains ten steps with each seed: of each step, and of before them, a row for each activation
    with its "size", mean |x| on the first batch."""
    rows = []
    for seed in range(seeds):
        steps = itertools.islice(trainings.steps(rate, seed), 1 + _STEPS)
        pairs = ((update.state.params, update.batch) for update in steps)
        curves = coordinates.measure(trainings.run.model, pairs)
        for step, row in enumerate(zip(*curves.values(), strict=True)):
            for name, size in zip(curves, row, strict=True):
                rows.append({"seed": seed, "step": step, "activation": name, "size": float(size)})
    return rows


def slopes(rows: Sequence[Row], size: str) -> list[Row]:
    """A row for each rule and activation: the slope that is furthest from 0, of the last steps.

    rows: of `sizes`, with their rule and size, a column such as "width"; each rule's with a base.
    """
    slope_rows = []
    for (rule,), members in results.group(rows, "rule").items():
        scales = dict(sorted(results.group(members, size).items()))
        seeds = [
            [_series(seed) for seed in results.group(cell, "seed").values()]
            for cell in scales.values()
        ]
        late = coordinates.furthest(coordinates.slopes([scale for (scale,) in scales], seeds))
        slope_rows += [
            {"rule": rule, "activation": name, "slope": slope} for name, slope in late.items()
        ]
    return slope_rows


def numbers(slope_rows: Sequence[Row]) -> dict[str, float]:
    """`slopes` as "slope/RULE/ACTIVATION"."""
    return {f"slope/{row['rule']}/{row['activation']}": row["slope"] for row in slope_rows}


def table(slope_rows: Sequence[Row]) -> str:
    """`slopes` as markdown, rules side by side."""
    lines = []
    for (name,), members in results.group(slope_rows, "activation").items():
        lines.append({"": name, **{row["rule"]: f"{row['slope']:+.2f}" for row in members}})
    return results.table(lines)


def about(size: str) -> str:
    """What the table shows, in words."""
    return (
        f"Slope of log2 of mean |x| over log2 of the {size}, from step {coordinates.FIRST_STEP} to "
        f"{_STEPS} the one that is furthest from 0; seeds' mean."
    )


def _series(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """activation -> its size by step."""
    return {
        name: np.array([row["size"] for row in sorted(members, key=lambda row: row["step"])])
        for (name,), members in results.group(rows, "activation").items()
    }
