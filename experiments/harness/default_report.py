"""The report of an experiment that has no report.py: arms, scores, differences in pairs, curves."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from experiments.harness.sweep import FOLDERS, Run
from transformer_jax.config import load as overrides
from transformer_jax.runs.workdir import scores
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.arms import short_names

# The labels in which the runs of an arm may differ, and the keys that these name.
_SEEDS = ("seed", "data_seed", "data.seed")
_KEYS = ("seed", "data.seed")
_PAIR = "seeds"  # the column of what runs of two arms share that are a pair
_CURVES = {"train": "train/token_loss", "validation": "validation/token_loss"}
_LEFT_OUT = ("loss", "perplexity")  # of the table: token_loss says nearly the same
_MOST_ROWS = 40  # of measurements, in the table
_FEWEST = 3  # values of a label over which there is a best one


def check(runs: Sequence[Run]) -> None:
    """Raises ValueError where runs differ in more than the seed, and their labels do not say so.

    The report would take them for seeds, and show their mean.
    """
    first: dict[str, Run] = {}
    for run in runs:
        labels = {name: value for name, value in run.labels.items() if name not in _SEEDS}
        other = first.setdefault(repr(sorted(labels.items())), run)
        changed = overrides.changes(other.resolved, run.resolved).keys() - {*_KEYS, *FOLDERS}
        if changed:
            raise ValueError(
                f"the runs {other} and {run} differ in {', '.join(sorted(changed))}, which no "
                "label says: the report would take them for two seeds"
            )


def report(runs: Sequence[Finished], out: Path, sweep: str) -> str:
    """Writes SWEEP.csv, the figures and summary.json; returns the tables and the figures."""
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
    settings = [label for label in labels if label not in _SEEDS]
    seeded = [{**row, _PAIR: _seeds(run)} for row, run in zip(rows, runs, strict=True)]
    arms = results.group(seeded, *settings)
    short = short_names([dict(zip(settings, values, strict=True)) for values in arms])
    names = {values: name or sweep for values, name in zip(arms, short, strict=True)}
    numbers = {
        f"{sweep}/{score}/{names[values]}": _mean(members, score)
        for values, members in arms.items()
        for score in _columns(members)
    }
    results.write_summary(out, numbers)
    arm_labels = [dict(zip(settings, values, strict=True)) for values in arms]
    lines = [line | _line(members) for line, members in zip(arm_labels, arms.values(), strict=True)]
    texts = [results.table(lines)]
    if convention := intervals.convention(map(len, arms.values())):
        texts.append(convention)
        texts += _differences(arm_labels, list(arms.values()), next(iter(names.values())))
    texts += [_best(seeded, label, settings, out, sweep) for label in settings]
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
    return "\n\n".join(filter(None, texts))


def _seeds(run: Finished) -> tuple[Any, Any]:
    config = run.run.resolved
    of_data = config.data.get("seed")
    return config.seed, config.seed if of_data is None else of_data


def _columns(rows: Sequence[Row]) -> list[str]:
    """The scores that the table shows."""
    names = dict.fromkeys(name for row in rows for name in row if "/" in name)
    return [name for name in names if name.partition("/")[2] not in _LEFT_OUT]


def _line(members: Sequence[Row]) -> Row:
    """What the table says of an arm."""
    statuses = [row["status"] for row in members]
    status = [f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)]
    means = {
        score: results.interval(row.get(score) for row in members) for score in _columns(members)
    }
    return {"runs": ", ".join(status)} | means


def _differences(labels: Sequence[Row], arms: Sequence[Sequence[Row]], first: str) -> list[str]:
    """What each arm has less than the first, in pairs of equal seeds."""
    lines = []
    for line, members in zip(labels[1:], arms[1:], strict=True):
        less = {
            score: intervals.less(_by_seeds(members, score), _by_seeds(arms[0], score))
            for score in _columns([*arms[0], *members])
        }
        lines.append(line | less)
    heading = f"Less {first}, in pairs of equal seeds, means ± half their 95 % interval:"
    return [heading, results.table(lines)] if lines else []


def _by_seeds(members: Sequence[Row], score: str) -> Mapping[Any, float]:
    return {row[_PAIR]: value for row in members if (value := row.get(score)) is not None}


def _mean(members: Sequence[Row], score: str) -> float | None:
    """The mean of a score; None where one of the runs has none that is finite."""
    values = [row.get(score) for row in members]
    return None if None in values else intervals.mean(values).value


def _best(rows: Sequence[Row], label: str, settings: Sequence[str], out: Path, sweep: str) -> str:
    """The loss over a label of numbers, and of each arm of the others the best one.

    Empty for a label of which there are too few, or which has no logarithm.
    """
    values = {row[label] for row in rows}
    scored = [name for name in _CURVES.values() if any(row.get(name) is not None for row in rows)]
    if len(values) < _FEWEST or not scored or not all(map(_is_positive, values)):
        return ""
    score, others = scored[-1], [name for name in settings if name != label]
    arms = results.group(rows, *others)
    arm_labels = [dict(zip(others, values, strict=True)) for values in arms]
    names = [name or sweep for name in short_names(arm_labels)]
    lines, points = [], []
    for line, name, members in zip(arm_labels, names, arms.values(), strict=True):
        lines.append(line | _optimum(members, label, score))
        points += [{label: row[label], "setting": name, "loss": row.get(score)} for row in members]
    figure = figures.lines(
        points, x=label, y="loss", by="setting", xlabel=label, ylabel=score, xscale="log"
    )
    file = f"{sweep}_{label.replace('/', '_')}"
    return "\n\n".join(
        [
            f"The best {label}: of each seed the vertex of a parabola through {score} over its "
            "log; geometric mean, and in brackets its 95 % interval by Student's t.",
            results.table(lines),
            figures.save(figure, out, file, f"Mean {score} by {label} in its 95 % interval"),
        ]
    )


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _optimum(members: Sequence[Row], label: str, score: str) -> Row:
    """The best value of a label, and the least loss, over the seeds of an arm."""
    grids = [
        {row[label]: row.get(score) for row in rows}
        for rows in results.group(members, _PAIR).values()
        if any(row.get(score) is not None for row in rows)
    ]
    if not grids:
        return {f"best {label}": "", f"least {score}": "", "n": 0}
    optima = [rates.optimum(grid) for grid in grids]
    log = intervals.mean([each.log2_rate for each in optima])
    text = f"{2**log.value:.3g}"
    if math.isfinite(half := log.half_width):
        text += f" ({2 ** (log.value - half):.2g} to {2 ** (log.value + half):.2g})"
    text += " (end of the grid)" * (not all(each.inside for each in optima))
    least = results.interval(each.loss for each in optima)
    return {f"best {label}": text, f"least {score}": least, "n": len(optima)}


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
    description = "Mean loss by step on training and validation data, in its 95 % interval"
    return figures.save(figure, out, f"{sweep}_curves", description)


def _measured(rows: Sequence[Row], out: Path, sweep: str) -> str:
    path = out / f"{sweep}_measurements.csv"
    results.write_csv(path, rows)
    more = f"\n\nAll {len(rows)} rows are in [{path.name}]({out.name}/{path.name})."
    return results.table(rows[:_MOST_ROWS]) + more * (len(rows) > _MOST_ROWS)
