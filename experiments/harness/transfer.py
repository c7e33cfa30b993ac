"""Whether the best learning rate of the smallest model is that of larger ones, by rule and size.

Of rows as `Trainings.row` gives them, with their rule and SIZE, a column such as "width". The
smallest size is the base.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness import rates, results
from experiments.harness.results import Row
from transformer_jax.tools.reports.intervals import Estimate

# The learning rates that width_transfer and depth_transfer share, over which sensitivities compare.
WINDOW = 2.0**-9, 2.0**-3


def with_base(rows: Sequence[Row], size: str) -> list[Row]:
    """The rows, with those of the first rule at the base for each rule that has none there.

    Rules that are powers of the size over the base's are all one at the base.
    """
    base = min(row[size] for row in rows)
    rules = [rule for (rule,) in results.group(rows, "rule")]
    at_base = [row for row in rows if row[size] == base]
    base_rules = {row["rule"] for row in at_base}
    first = [row for row in at_base if row["rule"] == rules[0]]
    lent = [{**row, "rule": rule} for rule in rules if rule not in base_rules for row in first]
    return [row for rule in rules for row in [*lent, *rows] if row["rule"] == rule]


def shifts(rows: Sequence[Row], size: str) -> list[Row]:
    """A row for each rule and size, of `with_base`'s rows.

    trained, runs: trainings that `rates.trains`, and all. What follows is of the seeds of which
      something trained, and missing where nothing did.
    optimum: log2 of the best learning rate, mean over seeds. inside: whether the grid goes on to
      both sides of it, for all of them.
    shift, error, freedom: against the base's, in octaves; as of `Estimate`, the deviation
      being pooled over the rule's sizes.
    loss: the least of the grid, mean over seeds. penalty: of the base's best rate, as of
      `rates.penalty`.
    sensitivity: to the learning rates of `WINDOW`, mean over seeds.
    """
    shift_rows = []
    for (rule,), members in results.group(rows, "rule").items():
        sizes = dict(sorted(results.group(members, size).items()))
        optima = {at: list(rates.optima(cell).values()) for (at,), cell in sizes.items()}
        logs = {at: [each.log2_rate for each in seeds] for at, seeds in optima.items() if seeds}
        deviation = results.pooled_deviation(list(logs.values()))
        base = min(optima)
        at_base = rates.best_rate(sizes[(base,)]) if optima[base] else None
        for (at,), cell in sizes.items():
            trained = sum(map(rates.trains, cell))
            row = {"rule": rule, size: at, "trained": trained, "runs": len(cell)}
            if seeds := optima[at]:
                row |= {
                    "optimum": float(np.mean(logs[at])),
                    "inside": all(each.inside for each in seeds),
                    "loss": float(np.mean([each.loss for each in seeds])),
                    "sensitivity": float(np.mean([_sensitivity(grid) for grid in _seeds(cell)])),
                }
                if base in logs:
                    moved = results.difference(logs[at], logs[base], deviation)
                    row |= {"shift": moved.value, "error": moved.error}
                    row["freedom"] = moved.freedom
                if at_base is not None:
                    row["penalty"] = rates.penalty(cell, at_base)
            shift_rows.append(row)
    return shift_rows


def numbers(shift_rows: Sequence[Row], size: str) -> dict[str, float]:
    """`shifts` as "QUANTITY/RULE/SIZE"."""
    quantities = ("optimum", "shift", "error", "penalty", "loss", "sensitivity")
    return {
        f"{quantity}/{row['rule']}/{row[size]}": row[quantity]
        for row in shift_rows
        for quantity in quantities
        if quantity in row
    }


def table(shift_rows: Sequence[Row], size: str) -> str:
    """`shifts` as markdown, with 95 % intervals; says where the grid ends at the optimum."""
    base = min(row[size] for row in shift_rows)
    inside = {row["rule"] for row in shift_rows if row[size] == base and row.get("inside")}
    return results.table([_line(row, size, base, row["rule"] in inside) for row in shift_rows])


def _line(row: Row, size: str, base: Any, base_inside: bool) -> Row:
    line = {
        "rule": row["rule"],
        size: row[size],
        "trained": f"{row['trained']} of {row['runs']}",
        "best rate": "",
        "shift, octaves": "",
        "least loss": row.get("loss"),
        "penalty of the base's rate": "",
        "sensitivity": row.get("sensitivity"),
    }
    if "optimum" in row:
        beyond = " (end of the grid)" * (not row["inside"])
        line["best rate"] = f"{2 ** row['optimum']:.2g}{beyond}"
    if row[size] == base:
        return line
    if "shift" in row:
        beyond = " (of an end of the grid)" * (not (row["inside"] and base_inside))
        moved = Estimate(row["shift"], row["error"], row["freedom"])
        line["shift, octaves"] = f"{moved:+}{beyond}"
    if (lost := row.get("penalty")) is not None:
        line["penalty of the base's rate"] = f"{lost:.3f}" if math.isfinite(lost) else "diverges"
    return line


def _seeds(rows: Sequence[Row]) -> list[list[Row]]:
    """By seed, those of which something trained."""
    seeds = results.group(rows, "seed").values()
    return [cell for cell in seeds if any(map(rates.trains, cell))]


def _sensitivity(rows: Sequence[Row]) -> float:
    low, high = WINDOW
    shared = [row for row in rows if low <= row["learning_rate"] <= high]
    return rates.sensitivity(rates.grid(shared), rows[0]["initial"])
