"""The table of variations, as in the paper, with differences to the base over the same seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

_SCORES = {
    "loss": "validation/token_loss",
    "bleu": "test/bleu",
    "exact_match": "test/exact_match",
    "pronoun_accuracy": "test/pronoun_accuracy",
}


def report(runs: list[Finished], out: Path) -> str:
    """Writes variations.csv, a figure and the numbers; returns the text."""
    # A run that came to nothing has no scores.
    rows = [_row(run) for run in runs if "test/bleu" in run.results]
    results.write_csv(out / "variations.csv", rows)
    changes = [str(change) for (change,) in results.group(rows, "change")]
    differences = {
        change: results.paired_differences(
            _pairs(rows, change), "loss", between=("change", change, ""), on=["seed"]
        )
        for change in changes
        if change
    }
    results.write_summary(out, _numbers(rows, differences))
    return "\n\n".join(
        [
            "Medians over seeds. Perplexity: of a word of validation. Difference: validation loss "
            "minus that of the base with the same seed, in nats a word, and its interval.",
            _table(rows, differences),
            figures.save(
                _figure(differences),
                out,
                "variations",
                "Validation loss of each variation minus that of the base, a point for each seed",
            ),
        ]
    )


def _row(run: Finished) -> dict[str, Any]:
    scores = {name: run.results[key] for name, key in _SCORES.items()}
    return {**run.labels, "parameters": run.results["parameters"], **scores}


def _pairs(rows: Sequence[Row], change: str) -> list[Row]:
    """A variation, and the base of the same seeds."""
    seeds = {row["seed"] for row in rows if row["change"] == change}
    return [row for row in rows if row["change"] in (change, "") and row["seed"] in seeds]


def _table(rows: Sequence[Row], differences: dict[str, list[float]]) -> str:
    table = []
    for (row, change), members in results.group(rows, "row", "change").items():
        median = {name: results.median(member[name] for member in members) for name in _SCORES}
        table.append(
            {
                "row": row,
                "change": change,
                "parameters": members[0]["parameters"],
                "perplexity": float(np.exp(median["loss"])),
                "BLEU": median["bleu"],
                "exact match": median["exact_match"],
                "pronouns": median["pronoun_accuracy"],
                "difference": results.interval(differences[str(change)], "+.3f") if change else "",
            }
        )
    return results.table(table)


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


def _numbers(rows: Sequence[Row], differences: dict[str, list[float]]) -> dict[str, float]:
    """Medians: loss/CHANGE, bleu/CHANGE ... and difference/CHANGE, the base called base."""
    numbers = {}
    for (change,), members in results.group(rows, "change").items():
        for name in _SCORES:
            numbers[f"{name}/{_name(change)}"] = results.median(member[name] for member in members)
    for change, values in differences.items():
        numbers[f"difference/{_name(change)}"] = results.median(values)
    return numbers


def _name(change: object) -> str:
    """As "num_heads=1,head_dim=64"; the base is "base"."""
    return str(change or "base").replace(", ", ",").replace(" ", "=")
