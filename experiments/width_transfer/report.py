"""The best learning rate by rule and width, and whether activations keep their size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results, transfer
from experiments.harness.results import Finished, Row
from transformer_jax.inspection import coordinates


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes losses.csv, shifts.csv, coordinates.csv, the figure and the numbers; the text."""
    measured = results.rows(runs)
    losses = [row for row in measured if row["measured"] == "losses"]
    checked = _slopes([row for row in measured if row["measured"] == "coordinates"])
    with_base = transfer.with_base(losses, "width")
    shifts = transfer.shifts(with_base, "width")
    for name, rows in {"losses": losses, "shifts": shifts, "coordinates": checked}.items():
        results.write_csv(out / f"{name}.csv", rows)
    numbers = {
        f"{quantity}/{row['rule']}/{row['width']}": row[quantity]
        for row in shifts
        for quantity in ("optimum", "shift", "error", "penalty", "loss", "sensitivity")
        if quantity in row
    }
    numbers |= {f"slope/{row['rule']}/{row['activation']}": row["slope"] for row in checked}
    results.write_summary(out, numbers)
    figure = figures.by_learning_rate(with_base, by="width", panel="rule")
    description = (
        "Validation loss over the learning rate by width, a panel for each rule; trainings that "
        "diverged stand at the loss before training"
    )
    low, high = transfer.WINDOW
    return "\n\n".join(
        [
            "### Best learning rates",
            "Means over seeds; shifts against the smallest width with two standard errors. "
            f"Sensitivity is over learning rates from {low:g} to {high:g}.",
            transfer.table(shifts, "width"),
            figures.save(figure, out, "losses", description),
            "### Coordinate check",
            "Slope of log2 of mean |x| over log2 of the width, from step "
            f"{coordinates.FIRST_STEP} to 10 the one that is furthest from 0; seeds' mean.",
            _slope_table(checked),
        ]
    )


def _slopes(rows: Sequence[Row]) -> list[Row]:
    """A row for each rule and activation: the slope that is furthest from 0, of the last steps."""
    found = []
    for (rule,), own in results.group(transfer.with_base(rows, "width"), "rule").items():
        widths = dict(sorted(results.group(own, "width").items()))
        sizes = [
            [_series(seed) for seed in results.group(cell, "seed").values()]
            for cell in widths.values()
        ]
        slopes = coordinates.slopes([width for (width,) in widths], sizes)
        for name, slope in slopes.items():
            late = slope[coordinates.FIRST_STEP :]
            worst = float(late[np.argmax(np.abs(late))])
            found.append({"rule": rule, "activation": name, "slope": worst})
    return found


def _series(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """activation -> its size by step."""
    return {
        name: np.array([row["size"] for row in sorted(own, key=lambda row: row["step"])])
        for (name,), own in results.group(rows, "activation").items()
    }


def _slope_table(slopes: Sequence[Row]) -> str:
    lines = []
    for (name,), own in results.group(slopes, "activation").items():
        lines.append({"": name, **{row["rule"]: f"{row['slope']:+.2f}" for row in own}})
    return results.table(lines)
