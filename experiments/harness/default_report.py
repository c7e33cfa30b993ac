"""The report of an experiment that has no report.py: labels, status, scores over seeds, curves."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from experiments.harness.sweep import FOLDERS, Run
from transformer_jax.config import load as overrides
from transformer_jax.runs.workdir import scores
from transformer_jax.tools.reports.records import short_names

_SEED = "seed"  # the label over which scores are averaged
_CURVES = {"train": "train/token_loss", "validation": "validation/token_loss"}
_LEFT_OUT = ("loss", "perplexity")  # of the table: token_loss says nearly the same
_MOST_ROWS = 40  # of measurements, in the table


def check(runs: Sequence[Run]) -> None:
    """Raises ValueError where runs differ in more than the seed, and their labels do not say so.

    The report would take them for seeds, and show their mean.
    """
    first: dict[str, Run] = {}
    for run in runs:
        labels = {name: value for name, value in run.labels.items() if name != _SEED}
        other = first.setdefault(repr(sorted(labels.items())), run)
        changed = overrides.changes(other.resolved, run.resolved).keys() - {"seed", *FOLDERS}
        if changed:
            raise ValueError(
                f"the runs {other} and {run} differ in {', '.join(sorted(changed))}, which no "
                "label says: the report would take them for two seeds"
            )


def report(runs: Sequence[Finished], out: Path, sweep: str) -> str:
    """Writes SWEEP.csv, the curves and summary.json; returns the tables and the figure."""
    labels = dict.fromkeys(label for run in runs for label in run.labels)
    rows = [
        {
            **{label: run.labels.get(label) for label in labels},
            "status": run.results.get("status", "measured"),
            **scores(run.results),
        }
        for run in runs
    ]
    results.write_csv(out / f"{sweep}.csv", rows)
    settings = [label for label in labels if label != _SEED]
    groups = results.group(rows, *settings)
    short = short_names([dict(zip(settings, values, strict=True)) for values in groups])
    names = {values: name or sweep for values, name in zip(groups, short, strict=True)}
    numbers = {
        f"{sweep}/{score}/{names[values]}": _mean(members, score)
        for values, members in groups.items()
        for score in _columns(members)
    }
    results.write_summary(out, numbers)
    lines = [_line(settings, values, members) for values, members in groups.items()]
    texts = [results.table(lines)]
    if any(len(members) > 1 for members in groups.values()):
        texts.append("Scores are means over runs, ± their standard deviation.")
    points = [
        {"setting": names[tuple(run.labels.get(label) for label in settings)], "split": split}
        | {"step": step, "loss": loss}
        for run in runs
        for split, name in _CURVES.items()
        for step, loss in zip(*run.series(name), strict=True)
    ]
    if points:
        texts.append(_curves(points, out, sweep))
    if measured := results.rows(runs):
        texts.append(_measured(measured, out, sweep))
    return "\n\n".join(texts)


def _columns(rows: Sequence[Row]) -> list[str]:
    """The scores that the table shows."""
    names = dict.fromkeys(name for row in rows for name in row if "/" in name)
    return [name for name in names if name.partition("/")[2] not in _LEFT_OUT]


def _line(settings: Sequence[str], values: Sequence[object], members: Sequence[Row]) -> Row:
    """The row of runs that differ in the seed alone."""
    found = [row["status"] for row in members]
    status = [f"{found.count(status)} {status}" for status in dict.fromkeys(found)]
    line = dict(zip(settings, values, strict=True)) | {"runs": ", ".join(status)}
    for score in _columns(members):
        mean = _mean(members, score)
        text = "" if mean is None else f"{mean:.4g}"
        if mean is not None and len(members) > 1:
            text += f" ± {statistics.stdev(row[score] for row in members):.2g}"
        line[score] = text
    return line


def _mean(members: Sequence[Row], score: str) -> float | None:
    """The mean of a score; None where one of the runs has none that is finite."""
    values = [row.get(score) for row in members]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _curves(points: Sequence[Row], out: Path, sweep: str) -> str:
    figure = figures.lines(
        points,
        x="step",
        y="loss",
        by="setting",
        panel="split",
        xlabel="step",
        ylabel="cross-entropy (nats)",
    )
    description = "Median loss by step on training and validation data, with its range"
    return figures.save(figure, out, f"{sweep}_curves", description)


def _measured(rows: Sequence[Row], out: Path, sweep: str) -> str:
    path = out / f"{sweep}_measurements.csv"
    results.write_csv(path, rows)
    more = f"\n\nAll {len(rows)} rows are in [{path.name}]({out.name}/{path.name})."
    return results.table(rows[:_MOST_ROWS]) + more * (len(rows) > _MOST_ROWS)
