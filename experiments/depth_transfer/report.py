"""The best learning rate by rule and depth, and what depth does before training."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import coordinate_check, figures, results, transfer
from experiments.harness.results import Finished, Row


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes the csv files of the sweep, its figure and the numbers; returns the text."""
    rows = transfer.with_base(results.rows(runs), "layers")
    if "activation" in rows[0]:
        checked = coordinate_check.slopes(rows, "layers")
        results.write_csv(out / "coordinates.csv", checked)
        results.write_summary(out, coordinate_check.numbers(checked))
        return f"{coordinate_check.about('depth')}\n\n{coordinate_check.table(checked)}"
    # The exponents of Pre-LN, or other schemes.
    name = "alphas" if rows[0]["rule"].startswith("alpha") else "schemes"
    shifts = transfer.shifts(rows, "layers")
    results.write_csv(out / f"losses_{name}.csv", results.rows(runs))
    results.write_csv(out / f"shifts_{name}.csv", shifts)
    results.write_summary(out, transfer.numbers(shifts, "layers"))
    description = (
        "Validation loss over the learning rate by depth, a panel for each rule; trainings that "
        "diverged stand at the loss before training"
    )
    figure = figures.by_learning_rate(rows, by="layers", panel="rule")
    low, high = transfer.WINDOW
    return "\n\n".join(
        [
            "Means over seeds; shifts against the shallowest model with 95 % intervals (by t). "
            f"Sensitivity is over learning rates from {low:g} to {high:g}.",
            transfer.table(shifts, "layers"),
            figures.save(figure, out, f"losses_{name}", description),
            "Before training, after the last sublayer: variances of the residual stream and of the "
            "branch that is added to it, and the cosine between tokens; means over seeds.",
            _start_table(rows),
        ]
    )


def _start_table(rows: Sequence[Row]) -> str:
    lines = []
    for (rule, layers), members in results.group(rows, "rule", "layers").items():
        line = {"rule": rule, "layers": layers}
        for quantity in ("stream", "branch", "token_cosine"):
            line[quantity.replace("_", " ")] = results.spread(row[quantity] for row in members).mean
        lines.append(line)
    return results.table(lines)
