"""Learning rate times preconditioned sharpness, against the threshold that beta1 gives."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.inspection.sharpness import threshold

# How far from the threshold a reading still counts as at it, as a share of it.
MARGIN = 0.15
AT, UNSTEADY, ABOVE = "at the threshold", "unsteady", "above"
LEFT, UNMOVED, BELOW, DIVERGED = "left", "did not move", "below", "diverged"
OUTCOMES = {
    AT: "confirms",
    ABOVE: "refutes",
    LEFT: "refutes",
    UNMOVED: "refutes",
    UNSTEADY: "neither",
    BELOW: "inconclusive",
    DIVERGED: "inconclusive",
}


class Level(NamedTuple):
    """The last quarter of a training's readings, as shares of the threshold.

    Attributes:
      median, low, high: the median and the quartiles.
      inside: how many lie within the margin around 1.
      count: how many there are.
    """

    median: float
    low: float
    high: float
    inside: int
    count: int


def level(shares: Sequence[float | None]) -> Level | None:
    """None where one of the last quarter is missing: training diverged before its end."""
    late = [share for share in _last_quarter(shares) if share is not None]
    if len(late) < len(_last_quarter(shares)):
        return None
    low, median, high = (float(q) for q in np.quantile(late, [0.25, 0.5, 0.75]))
    return Level(median, low, high, sum(abs(share - 1) <= MARGIN for share in late), len(late))


def outcome(shares: Sequence[float | None]) -> str:
    """What a training's readings, as shares of the threshold, say alone.

    "at the threshold": in the last quarter the median and at least half of the readings lie within
      the margin. "unsteady": the median does, but fewer readings.
    "above": the median lies above. "left": it lies below, but readings had risen to the threshold;
      "below": they never had.
    "diverged": the last quarter is not complete.
    """
    quarter = level(shares)
    if quarter is None:
        return DIVERGED
    if quarter.median > 1 + MARGIN:
        return ABOVE
    if quarter.median >= 1 - MARGIN:
        return AT if 2 * quarter.inside >= quarter.count else UNSTEADY
    known = [share for share in shares if share is not None]
    rose = any(a < 1 - MARGIN <= b for a, b in itertools.pairwise(known))
    return LEFT if rose else BELOW


def cells(rows: Sequence[Row]) -> list[Row]:
    """A row for each training of the whole batch, in order; see `outcome`.

    "did not move": one that is "below" with the level of learning rate * sharpness that the same
    scheme and rate hold at the threshold of beta1 = 0.
    """
    trainings = [
        _cell(members)
        for members in results.group(rows, "scheme", "learning_rate", "beta1", "rows").values()
    ]
    still = {
        (cell["scheme"], cell["learning_rate"]): cell["level"]
        for cell in trainings
        if cell["beta1"] == 0 and cell["outcome"] == AT
    }
    for cell in trainings:
        at_0 = still.get((cell["scheme"], cell["learning_rate"]))
        if cell["outcome"] == BELOW and at_0 and abs(cell["level"] / at_0 - 1) <= MARGIN:
            cell["outcome"] = UNMOVED
    return trainings


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes readings.csv, cells.csv, the figure and the numbers; returns the text."""
    rows = [{**row, "product": _product(row)} for row in results.rows(runs)]
    whole = cells([row for row in rows if row["whole"]])
    controls = cells([row for row in rows if not row["whole"]])
    results.write_csv(out / "readings.csv", rows)
    results.write_csv(out / "cells.csv", [*whole, *controls])
    numbers = {f"trainings/{name}": _count(whole, name) for name in OUTCOMES}
    for name, group in (("level", whole), ("control", controls)):
        for cell in group:
            key = f"{cell['scheme']}/{cell['learning_rate']:g}/{cell['beta1']:g}"
            numbers[f"{name}/{key}"] = cell["level"]
    results.write_summary(out, numbers)
    description = (
        "Learning rate times preconditioned sharpness over steps by beta1, a panel for each scheme "
        "and learning rate; dashed lines are the thresholds, and a cross is where training diverged"
    )
    return "\n\n".join(
        [
            f"**{_verdict(whole)}**",
            _by_beta1(whole),
            figures.save(_curves([row for row in rows if row["whole"]]), out, "edge", description),
            "Learning rate * preconditioned sharpness; of the last quarter of the readings the "
            "median, the quartiles, and how many lie within 15 % of the threshold. Sharpness is "
            "that of the loss alone.",
            results.table([_line(cell) for cell in whole]),
            "### Minibatches",
            _controls(whole, controls),
        ]
    )


def _cell(rows: Sequence[Row]) -> Row:
    """What became of one training: `level` is of learning rate * preconditioned sharpness."""
    rows = sorted(rows, key=lambda row: row["step"])
    limit = threshold(rows[0]["beta1"])
    products = [row["product"] for row in rows]
    shares = [None if product is None else product / limit for product in products]
    quarter = level(shares)
    plain = [row["sharpness"] for row in _last_quarter(rows)]
    return {
        **{name: rows[0][name] for name in ("scheme", "learning_rate", "beta1", "rows")},
        "threshold": limit,
        "first": products[0],
        "level": None if quarter is None else quarter.median * limit,
        "low": None if quarter is None else quarter.low * limit,
        "high": None if quarter is None else quarter.high * limit,
        "inside": None if quarter is None else quarter.inside,
        "readings": len(_last_quarter(rows)),
        "first_sharpness": rows[0]["sharpness"],
        "sharpness": None if None in plain else results.median(plain),
        "loss": rows[-1]["loss"],
        "outcome": outcome(shares),
    }


def _product(row: Row) -> float | None:
    met = row["preconditioned_sharpness"]
    return None if met is None else row["learning_rate"] * met


def _last_quarter(values: Sequence[Any]) -> Sequence[Any]:
    return values[-max(1, len(values) // 4) :]


def _count(rows: Sequence[Row], name: str) -> int:
    return sum(cell["outcome"] == name for cell in rows)


def _verdict(whole: Sequence[Row]) -> str:
    """The README's criteria on all trainings together."""
    says = [OUTCOMES[cell["outcome"]] for cell in whole]
    at = {cell["beta1"] for cell in whole if cell["outcome"] == AT}
    counts = ", ".join(
        f"{_count(whole, name)} {name} ({means})"
        for name, means in OUTCOMES.items()
        if _count(whole, name)
    )
    if "refutes" in says:
        word = "Held in part" if at else "Refuted"
    else:
        word = "Confirmed" if at == {cell["beta1"] for cell in whole} else "Inconclusive"
    return f"{word}: of {len(whole)} trainings {counts}."


def _by_beta1(whole: Sequence[Row]) -> str:
    """What is predicted for each momentum, and the levels of the trainings at the threshold."""
    lines = []
    for (beta1,), members in sorted(results.group(whole, "beta1").items()):
        levels = [cell["level"] for cell in members if cell["outcome"] == AT]
        lines.append(
            {
                "beta1": f"{beta1:g}",
                "threshold": threshold(beta1),
                "at the threshold": f"{len(levels)} of {len(members)}",
                "their levels": f"{min(levels):.3g} to {max(levels):.3g}" if levels else "none",
            }
        )
    return results.table(lines)


def _line(cell: Row) -> Row:
    return {
        "scheme": figures.title(cell["scheme"]),
        "learning rate": f"{cell['learning_rate']:g}",
        "beta1": f"{cell['beta1']:g}",
        "threshold": cell["threshold"],
        "first reading": _number(cell["first"]),
        "last quarter": _level(cell),
        "within 15 %": "" if cell["inside"] is None else f"{cell['inside']} of {cell['readings']}",
        "sharpness, first": _number(cell["first_sharpness"]),
        "sharpness, last quarter": _number(cell["sharpness"]),
        "last loss": _number(cell["loss"]),
        "outcome": cell["outcome"],
    }


def _controls(whole: Sequence[Row], controls: Sequence[Row]) -> str:
    """Each control next to the training of the whole batch that it differs from in nothing else."""
    names = ("scheme", "learning_rate", "beta1")
    partners = {tuple(cell[name] for name in names): cell for cell in whole}
    lines, lower, compared = [], 0, 0
    for cell in controls:
        partner = partners.get(tuple(cell[name] for name in names))
        if partner and None not in (partner["level"], cell["level"]):
            compared += 1
            lower += cell["level"] < partner["level"]
        lines.append(
            {
                "scheme": figures.title(cell["scheme"]),
                "learning rate": f"{cell['learning_rate']:g}",
                "beta1": f"{cell['beta1']:g}",
                "threshold": cell["threshold"],
                "whole batch": _level(partner) if partner else "not run",
                f"{cell['rows']} rows": _level(cell),
            }
        )
    text = (
        f"The level is lower with fewer rows in {lower} of {compared} controls, and "
        f"{len(controls) - compared} cannot be compared. Both are read on the whole batch; one "
        "seed, so that no difference has an error."
    )
    return "\n\n".join([text, results.table(lines)])


def _level(cell: Row) -> str:
    if cell["level"] is None:
        return DIVERGED
    return f"{cell['level']:.3g} ({cell['low']:.3g} to {cell['high']:.3g})"


def _number(value: float | None) -> str:
    return DIVERGED if value is None else f"{value:.3g}"


def _curves(rows: Sequence[Row]) -> Any:
    """The readings over steps; where training diverged, a cross at the last one, or at the
    threshold where there is none."""
    schemes, rates = (sorted({row[name] for row in rows}) for name in ("scheme", "learning_rate"))
    beta1s = [f"{beta1:g}" for beta1 in sorted({row["beta1"] for row in rows})]
    places = list(itertools.product(schemes, rates))
    figure, axes = figures.panels(len(schemes), len(rates), sharex=True, sharey=True)
    for ax, (scheme, rate) in zip(axes, places, strict=True):
        here = [row for row in rows if (row["scheme"], row["learning_rate"]) == (scheme, rate)]
        for (beta1,), curve in sorted(results.group(here, "beta1").items()):
            looks = figures.style(f"{beta1:g}", beta1s)
            looks |= {"label": f"beta1 = {beta1:g}", "markersize": 2}
            ax.axhline(threshold(beta1), color=looks["color"], linewidth=0.8, linestyle="--")
            curve = sorted(curve, key=lambda row: row["step"])
            points = [(row["step"], row["product"]) for row in curve if row["product"] is not None]
            ax.plot(*np.reshape(points, (-1, 2)).T, **looks)
            if len(points) < len(curve):
                last = points[-1] if points else (curve[0]["step"], threshold(beta1))
                ax.plot(*last, marker="x", markersize=9, color=looks["color"])
        ax.set(yscale="log", title=f"{figures.title(scheme)}, {rate:g}")
    for ax in axes[-len(rates) :]:
        ax.set_xlabel("step")
    for ax in axes[:: len(rates)]:
        ax.set_ylabel("learning rate * sharpness of $P^{-1}H$")
    figures.legend(figure, axes)
    return figure
