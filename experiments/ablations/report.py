"""The table of variations, as in the paper, with differences to the base over the same seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports.intervals import Estimate

# What is scored, under which of these names training says it (the first that is there), and its
# column.
_SCORES = {
    "loss": (("validation/token_loss",), "perplexity"),
    "bleu": (("test/bleu", "validation/bleu"), "BLEU"),
    "exact_match": (("test/exact_match",), "exact match"),
    "pronoun_accuracy": (("test/pronoun_accuracy",), "pronouns"),
}
_DIFFERENCES = ("loss", "bleu")

# By change and score, a value for each seed.
_Differences = dict[str, dict[str, list[float]]]


def report(runs: list[Finished], out: Path) -> str:
    """Writes PART.csv, a figure and the numbers; returns the text."""
    part = runs[0].labels["part"]
    rows = [row for row in map(_row, runs) if "bleu" in row]  # what came to nothing has no scores
    results.write_csv(out / f"{part}.csv", rows)
    differences = {
        change: {
            score: results.paired_differences(
                _pairs(rows, change), score, between=("change", change, ""), on=["seed"]
            )
            for score in _DIFFERENCES
        }
        for (change,) in results.group(rows, "change")
        if change
    }
    errors = {score: _error(rows, score) for score in _DIFFERENCES}
    results.write_summary(out, _numbers(part, rows, differences, errors))
    return "\n\n".join(
        [
            "Medians over seeds. Perplexity: of a token of validation. Differences: validation "
            "loss, in nats a token, and BLEU, minus those of the base with the same seed. "
            f"{results.convention(rows, 'change')} That of a difference of two means, with the "
            f"deviation pooled over all rows, is ± {errors['loss'].half_width:.3f} nats and "
            f"± {errors['bleu'].half_width:.2f} BLEU.",
            _table(rows, differences),
            figures.save(
                _figure({change: by_score["loss"] for change, by_score in differences.items()}),
                out,
                part,
                "Validation loss of each variation minus that of the base, a point for each seed",
            ),
        ]
    )


def _row(run: Finished) -> dict[str, Any]:
    scores = {}
    for name, (keys, _) in _SCORES.items():
        if key := next((key for key in keys if key in run.results), None):
            scores[name] = run.results[key]
    return {**run.labels, "parameters": run.results.get("parameters"), **scores}


def _pairs(rows: Sequence[Row], change: str) -> list[Row]:
    """A variation, and the base of the same seeds."""
    seeds = {row["seed"] for row in rows if row["change"] == change}
    return [row for row in rows if row["change"] in (change, "") and row["seed"] in seeds]


def _error(rows: Sequence[Row], score: str) -> Estimate:
    """With the standard error of the difference of a variation's mean and the base's."""
    cells = [[row[score] for row in members] for members in results.group(rows, "change").values()]
    return results.difference(cells[0], cells[0], results.pooled_deviation(cells))


def _table(rows: Sequence[Row], differences: _Differences) -> str:
    table = []
    for (row, change), members in results.group(rows, "row", "change").items():
        line = {"row": row, "change": change, "parameters": members[0]["parameters"]}
        for score, median in _medians(members).items():
            line[_SCORES[score][1]] = float(np.exp(median)) if score == "loss" else median
        if change:
            line["loss less base's"] = results.interval(differences[change]["loss"])
            line["BLEU less base's"] = results.interval(differences[change]["bleu"])
        table.append(line)
    return results.table(table)


def _medians(members: Sequence[Row]) -> dict[str, float]:
    """Of every score that the runs have."""
    return {
        score: results.median(member[score] for member in members)
        for score in _SCORES
        if score in members[0]
    }


def _figure(differences: dict[str, list[float]]):
    figure, (ax,) = figures.panels()
    figure.set_size_inches(6.5, 4.2)
    names = list(differences)[::-1]
    for number, name in enumerate(names):
        values = differences[name]
        ax.plot(values, [number] * len(values), "o", color="#0072B2", markerfacecolor="none")
        ax.plot(results.median(values), number, "|", color="#000000", markersize=12)
    ax.axvline(0, color="#000000", linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set(xlabel="validation loss, less the base's (nats)")
    ax.locator_params(axis="x", nbins=5)
    return figure


def _numbers(
    part: str, rows: Sequence[Row], differences: _Differences, errors: dict[str, Estimate]
) -> dict[str, float]:
    """Medians: PART/loss/CHANGE ... and PART/difference/loss/CHANGE, the base called base."""
    numbers = {f"{part}/error/{score}": estimate.error for score, estimate in errors.items()}
    for (change,), members in results.group(rows, "change").items():
        for score, median in _medians(members).items():
            numbers[f"{part}/{score}/{_name(change)}"] = median
    for change, by_score in differences.items():
        for score, values in by_score.items():
            numbers[f"{part}/difference/{score}/{_name(change)}"] = results.median(values)
    return numbers


def _name(change: object) -> str:
    """As "num_heads=1,head_dim=64"; the base is "base"."""
    return str(change or "base").replace(", ", ",").replace(" ", "=")
