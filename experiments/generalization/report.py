"""Exact match on the split's test, and accuracy there and on training's own kind of commands."""

from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

# By their columns. Accuracy: of actions, each given those before it.
SCORES = {
    "exact match": "test/exact_match",
    "accuracy": "test/accuracy",
    "accuracy on validation": "validation/accuracy",
}


def report(runs: list[Finished], out: Path) -> str:
    """Writes exact_match.csv, a figure and the numbers; returns the text."""
    rows = scores(runs)
    results.write_csv(out / "exact_match.csv", rows)
    results.write_summary(
        out,
        {
            f"{name}/{split}/{positions}/{scheme}": results.median([row[name] for row in members])
            for (split, positions, scheme), members in results.group(
                rows, "split", "positions", "scheme"
            ).items()
            for name in SCORES
        },
    )
    figure = figures.save(
        _figure(rows),
        out,
        "exact_match",
        "Exact match on test by kind of positions, a point for each seed, a colour for each scheme",
    )
    tables = [
        f"### {split}\n\n{results.table(_table(members))}"
        for (split,), members in results.group(rows, "split").items()
    ]
    return "\n\n".join(
        [
            "Exact match of whole outputs, and accuracy of single actions, each given the right "
            "ones before it; on test, and on 500 examples of training's own kind (validation). "
            f"{results.convention(rows, 'split', 'positions', 'scheme')}",
            figure,
            *tables,
        ]
    )


def scores(runs: list[Finished]) -> list[Row]:
    """A row for each run that was scored on test: its labels and `SCORES`."""
    return [
        {**run.labels, **{name: run.results[key] for name, key in SCORES.items()}}
        for run in runs
        if "test/exact_match" in run.results
    ]


def _table(rows: list[Row]) -> list[Row]:
    return [
        {
            "positions": positions,
            "scheme": scheme,
            **{name: results.interval([row[name] for row in members]) for name in SCORES},
        }
        for (positions, scheme), members in results.group(rows, "positions", "scheme").items()
    ]


def _figure(rows: list[Row]):
    splits = results.group(rows, "split")
    kinds = [kind for (kind,) in results.group(rows, "positions")]
    schemes = [scheme for (scheme,) in results.group(rows, "scheme")]
    figure, axes = figures.panels(1, len(splits), sharey=True)
    for ax, ((split,), part) in zip(axes, splits.items(), strict=True):
        for number, scheme in enumerate(schemes):
            members = [row for row in part if row["scheme"] == scheme]
            shift = 0.2 * (number - (len(schemes) - 1) / 2)
            ax.plot(
                [kinds.index(row["positions"]) + shift for row in members],
                [row["exact match"] for row in members],
                **{**figures.style(scheme, schemes), "linestyle": "none", "marker": "o"},
            )
        ax.set_xticks(range(len(kinds)), kinds)
        ax.set(title=split)
    axes[0].set_ylabel("exact match on test")
    figures.legend(figure, axes)
    return figure
