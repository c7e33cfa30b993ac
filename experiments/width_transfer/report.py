"""The best learning rate by rule and width, and whether activations keep their size."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import coordinate_check, figures, results, transfer
from experiments.harness.results import Finished


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes losses.csv, shifts.csv, coordinates.csv, the figure and the numbers; the text."""
    measured = results.rows(runs)
    losses = [row for row in measured if row["measured"] == "losses"]
    sizes = [row for row in measured if row["measured"] == "coordinates"]
    checked = coordinate_check.slopes(transfer.with_base(sizes, "width"), "width")
    with_base = transfer.with_base(losses, "width")
    shifts = transfer.shifts(with_base, "width")
    for name, rows in {"losses": losses, "shifts": shifts, "coordinates": checked}.items():
        results.write_csv(out / f"{name}.csv", rows)
    numbers = transfer.numbers(shifts, "width") | coordinate_check.numbers(checked)
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
            "Means over seeds; shifts against the smallest width with 95 % intervals (by t). "
            f"Sensitivity is over learning rates from {low:g} to {high:g}.",
            transfer.table(shifts, "width"),
            figures.save(figure, out, "losses", description),
            "### Coordinate check",
            coordinate_check.about("width"),
            coordinate_check.table(checked),
        ]
    )
