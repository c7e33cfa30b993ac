"""The best constant rate; then how often losses jump by condition, and what comes before."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from experiments.loss_spikes import series
from experiments.loss_spikes.series import Series
from transformer_jax.inspection.sharpness import threshold
from transformer_jax.tools.reports.intervals import Estimate

_CONDITION = ("clip", "beta2", "embedding")
_COMPARED = ("jumps_before", "above_before", "jumps_after", "above_after", "harm")
# Of the learning rate times the curvature, beyond which Adam's steps overshoot (Cohen et al. 2022);
# beta1 is 0.9.
EDGE = threshold(0.9)
# After the odd batch: steps in which the curvature is read, and around it those of the figure.
_READ, _DRAWN = 30, range(-20, 61)


class Training(NamedTuple):
    """One training: the condition and the seed, what was measured, the series of it."""

    labels: Row
    rows: Sequence[Row]
    series: Series


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes the csv files of the sweep, its figures and numbers; returns the text."""
    if "measured" in runs[0].labels:
        return _rates(results.rows(runs), out)
    return _spikes(runs, out)


def _rates(rows: Sequence[Row], out: Path) -> str:
    results.write_csv(out / "rates.csv", rows)
    optima = list(rates.optima(rows).values())
    best = 2 ** float(np.mean([each.log2_rate for each in optima])) if optima else math.nan
    inside = all(each.inside for each in optima)
    results.write_summary(out, {"best rate": best, "best rate inside the grid": inside})
    lines = [
        {
            "learning rate": rate,
            "trained": trained(list(map(rates.trains, members))),
            "loss": mean([row["loss"] for row in members], ".3f"),
        }
        for (rate,), members in results.group(rows, "learning_rate").items()
    ]
    figure = figures.lines(
        [row | {"loss": row["initial"] if row["loss"] is None else row["loss"]} for row in rows],
        x="learning_rate",
        y="loss",
        by="measured",
        xscale="log",
        xlabel="learning rate",
        ylabel="validation loss (nats a character)",
    )
    description = (
        "Validation loss over the constant learning rate; trainings that diverged stand at the "
        "loss before training"
    )
    picture = figures.save(figure, out, "rates", description)
    return "\n\n".join([best_rate(optima), results.table(lines), picture])


def best_rate(optima: Sequence[rates.Optimum]) -> str:
    """The geometric mean of the seeds' best rates, and three times that, in words."""
    if not optima:
        return "Nothing trains at any of these rates: there is no best one."
    logs = [each.log2_rate for each in optima]
    best = 2 ** float(np.mean(logs))
    beyond = " It lies at an end of the grid." * (not all(each.inside for each in optima))
    seeds = " and ".join(f"2^{log:.2f}" for log in logs)
    return (
        f"Best constant rate {best:.3g}, by seed {seeds}; three times it, {3 * best:.3g}.{beyond}"
    )


def _spikes(runs: Sequence[Finished], out: Path) -> str:
    trainings = [training for run in runs for training in trainings_of(run)]
    scores = [{**each.labels, **training_row(each)} for each in trainings]
    leads = [
        {**run.labels, **lead_row([each.series for each in trainings_of(run)])} for run in runs
    ]
    curved = [
        {**run.labels, **curvature_row(trainings_of(run)[0])}
        for run in runs
        if _arguments(run)["curvature"]
    ]
    for name, rows in {"scores": scores, "leads": leads, "curvature": curved}.items():
        results.write_csv(out / f"{name}.csv", rows)
    results.write_summary(out, _numbers(scores, leads))
    cells = list(results.group(scores, *_CONDITION).values())
    rate = _arguments(runs[0])["learning_rate"]
    return "\n\n".join(
        [
            multiple(rate, results.read_json(out / "summary.json")),
            "### How often losses jump",
            "Percent of the steps, before and after the odd batch, means over seeds. *jumps*: 7 "
            "standard deviations from the mean of up to 1,000 steps. *above*, *below*: more than "
            f"{series.ABOVE} nats from the running median of {series.WINDOW} steps; what is below "
            "is the batches' doing alone.",
            results.table([_score_line(cell) for cell in cells]),
            "### The odd batch",
            "The largest ratio in its step, and where in most seeds; *harm*: nats of the median of "
            f"the {series.HARM} losses after it over the level before; *recovery*: by seed, in "
            "steps.",
            results.table([_odd_line(cell) for cell in cells]),
            _odd_figure(runs, out),
            "### Differences",
            "With 95 % intervals by t, in bold where 0 lies outside.",
            results.table(differences(scores)),
            "### Large ratios before spikes",
            f"Spikes; those with a ratio of at least {series.LARGE} in the {series.LEAD} steps "
            "before; as many as circular shifts of the ratios give; and the difference as a share "
            "of the spikes, with a normal 95 % interval by the deviation over the shifts.",
            results.table([_lead_line(row) for row in leads]),
            "### Curvature around the odd batch",
            "The learning rate times the largest curvature as Adam's steps meet it, which "
            f"overshoot beyond {EDGE:.0f}; of the first seed, on one ordinary batch. Then, of the "
            f"steps from the odd one to {_READ} after it, the first with a reading beyond "
            f"{EDGE:.0f}, the first with a ratio of {series.LARGE}, and the first of a spike over "
            "the level before.",
            results.table([_curvature_line(row) for row in curved]),
            _curvature_figure(trainings, out),
        ]
    )


# Rows of numbers ---------------------------------------------------------------------------------


def trainings_of(run: Finished) -> list[Training]:
    """The trainings of a run, one for each seed."""
    config, injected = run.run.resolved, _arguments(run)["injected"]
    start = config.optimizer.warmup_steps + series.DESCENT
    trainings = []
    for (seed,), rows in results.group(run.measurements, "seed").items():
        losses, ratios = (column(rows, name, config.train.steps) for name in ("loss", "ratio"))
        labels = {**run.labels, "seed": seed}
        trainings.append(Training(labels, rows, Series(losses, ratios, start, injected)))
    return trainings


def column(rows: Sequence[Row], name: str, steps: int) -> np.ndarray:
    """A number by step from 1; NaN where there is none."""
    values = np.full(steps, np.nan)
    for row in rows:
        if row.get(name) is not None:
            values[row["step"] - 1] = row[name]
    return values


def training_row(training: Training) -> Row:
    """What one training showed; None for what comes after it diverged."""
    log = training.series
    odd = next((row for row in training.rows if row["step"] == log.injected), {})
    return {
        "trained": log.trained,
        **series.scores(log),
        "harm": series.harm(log),
        "recovery": series.recovery(log),
        "ratio": odd.get("ratio"),
        "tensor": odd.get("tensor"),
    }


def lead_row(seeds: Sequence[Series]) -> Row:
    """Spikes of all seeds, and what precedes them.

    excess, error: of the share of spikes that a large ratio precedes, over that by chance.
    """
    leads = [series.leads(seed) for seed in seeds]
    spikes, led, expected, variance = (sum(values) for values in zip(*leads, strict=True))
    row = {"spikes": spikes, "led": led, "expected": expected}
    if spikes:
        row |= {"excess": (led - expected) / spikes, "error": math.sqrt(variance) / spikes}
    return row


def curvature_row(training: Training) -> Row:
    """The curvature before the odd batch; when curvature, ratio and loss pass their limits, or None
    where they do not."""
    log = training.series
    if np.isnan(log.losses[log.injected - 1]):
        return {"before": None}
    curvature = column(training.rows, "curvature", log.losses.size)
    before = curvature[: log.injected][np.isfinite(curvature[: log.injected])]
    # The odd batch's own loss is large, whatever the model does.
    over = np.where(np.arange(log.losses.size) < log.injected, 0, log.losses - series.level(log))
    passed = {"curvature": curvature > EDGE, "ratio": log.ratios >= series.LARGE}
    first = {name: np.flatnonzero(each) for name, each in passed.items()}
    first["spike"] = series.spikes(over)
    row: Row = {"before": float(np.median(before)), "largest_before": float(before.max())}
    for name, places in first.items():
        steps = [at + 1 for at in places if 0 <= at + 1 - log.injected <= _READ]
        row[f"{name}_at"] = int(steps[0]) if steps else None
    return row


def differences(rows: Sequence[Row]) -> list[Row]:
    """A line for each pair of conditions that the protocol compares."""
    cells = results.group(rows, *_CONDITION)
    clips, betas, _ = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    low, high = min(betas), max(betas)
    pairs = [
        (f"beta2 {high:g} - {low:g}, clip {clip}", (clip, high, "scaled"), (clip, low, "scaled"))
        for clip in clips
        if low < high
    ]
    pairs += [
        (f"clip {a} - {b}, beta2 {beta2:g}", (a, beta2, "scaled"), (b, beta2, "scaled"))
        for a, b in (("none", "update"), ("gradient", "update"))
        for beta2 in betas
    ]
    # Both are said to cure what is small.
    pairs += [
        (f"embedding {cell[2]} - small", cell, (*cell[:2], "small"))
        for cell in cells
        if cell[2] != "small" and (*cell[:2], "small") in cells
    ]
    return [
        {"": label}
        | {name.replace("_", " "): difference(cells[a], cells[b], name) for name in _COMPARED}
        for label, a, b in pairs
    ]


def difference(rows: Sequence[Row], others: Sequence[Row], name: str) -> str:
    """Of the means, in bold where it counts; "diverged" where a training has no such number."""
    values, other_values = ([row[name] for row in members] for members in (rows, others))
    if None in values or None in other_values:
        return "diverged"
    return _text(results.difference(values, other_values))


def _text(estimate: Estimate) -> str:
    """Empty where there was nothing to judge."""
    if not math.isfinite(estimate.value):
        return ""
    text = f"{estimate:+}"
    return f"**{text}**" if estimate.counts else text


def _arguments(run: Finished) -> Mapping[str, Any]:
    """The arguments with which the run was measured."""
    return run.run.measure or {}


def _numbers(scores: Sequence[Row], leads: Sequence[Row]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for cell in results.group(scores, *_CONDITION).values():
        numbers[f"trained/{_path(cell[0])}"] = sum(row["trained"] for row in cell)
        for name in _COMPARED:
            known = [row[name] for row in cell if row[name] is not None]
            numbers[f"{name}/{_path(cell[0])}"] = float(np.mean(known)) if known else math.nan
    return numbers | {f"lead/{_path(row)}": row.get("excess", math.nan) for row in leads}


def _path(row: Row) -> str:
    return "/".join(str(row[name]) for name in _CONDITION)


# Lines of tables ---------------------------------------------------------------------------------


def multiple(rate: float, summary: Mapping[str, Any]) -> str:
    """How many times the best rate this one is, in words."""
    best = summary.get("best rate")
    if best is None:
        return f"The learning rate is {rate:.3g}; `rates` has not measured which one is best."
    beyond = ", which lies at an end of the grid" * (not summary["best rate inside the grid"])
    times = rate / best
    return f"The learning rate is {rate:.3g}, {times:.2g} times the best of `rates`{beyond}."


def mean(values: Sequence[float | None], form: str = ".2f") -> str:
    """The mean of those that are there, as "0.12 (2 of 3)" where not all are."""
    known = [value for value in values if value is not None]
    if not known:
        return "diverged"
    average = float(np.mean(known))
    if not math.isfinite(average):
        return ""
    return f"{average:{form}}" + f" ({len(known)} of {len(values)})" * (len(known) < len(values))


def trained(each: Sequence[bool]) -> str:
    """As "2 of 3"."""
    return f"{sum(each)} of {len(each)}"


def _condition(row: Row) -> Row:
    return {name: row[name] for name in _CONDITION}


def _score_line(cell: Sequence[Row]) -> Row:
    line = _condition(cell[0]) | {"trained": trained([row["trained"] for row in cell])}
    for piece in ("before", "after"):
        for kind in ("jumps", "above", "below"):
            line[f"{kind} {piece}"] = mean([row[f"{kind}_{piece}"] for row in cell])
    return line


def _odd_line(cell: Sequence[Row]) -> Row:
    tensors = Counter(row["tensor"] for row in cell if row["tensor"] is not None)
    steps = ["never" if row["recovery"] is None else str(row["recovery"]) for row in cell]
    return _condition(cell[0]) | {
        "ratio": mean([row["ratio"] for row in cell]),
        "in": tensors.most_common(1)[0][0] if tensors else "",
        "harm": mean([row["harm"] for row in cell], "+.2f"),
        "recovery": ", ".join(steps),
    }


def _lead_line(row: Row) -> Row:
    line = _condition(row) | {"spikes": row["spikes"], "led": row["led"]}
    line["by chance"] = f"{row['expected']:.1f}"
    counted = row["spikes"] > 0
    more = _text(Estimate(row["excess"], row["error"], math.inf)) if counted else ""
    return line | {"share over chance": more}


def _curvature_line(row: Row) -> Row:
    line = _condition(row)
    if row["before"] is None:
        return line | {"before": "diverged"}
    line |= {"before": f"{row['before']:.1f}", "largest before": f"{row['largest_before']:.1f}"}
    for name in ("curvature", "ratio", "spike"):
        at = row[f"{name}_at"]
        line[name] = "never" if at is None else str(at)
    return line


# Figures -----------------------------------------------------------------------------------------


def _odd_figure(runs: Sequence[Finished], out: Path) -> str:
    rows = []
    for run in runs:
        if run.labels["embedding"] == "scaled":
            losses = np.mean(
                [drawn_losses(each.series.losses) for each in trainings_of(run)], axis=0
            )
            at = _arguments(run)["injected"]
            # The odd batch's own loss is off scale.
            offsets = [offset for offset in _DRAWN if offset and at + offset <= losses.size]
            rows += [{**run.labels, "step": x, "loss": losses[at + x - 1]} for x in offsets]
    description = (
        "Training loss around the odd batch by beta2, a panel for what is clipped; means over "
        "seeds, of which those that diverged stand at their first loss"
    )
    figure = _by_beta2(rows, "loss", "loss (nats a character)")
    return figures.save(figure, out, "odd_batch", description)


def drawn_losses(losses: np.ndarray) -> np.ndarray:
    """With the first loss, that before training, in place of all after a divergence."""
    return np.where(np.isfinite(losses), losses, losses[0])


def _curvature_figure(trainings: Sequence[Training], out: Path) -> str:
    rows = [
        {**each.labels, "step": row["step"] - each.series.injected, "curvature": row["curvature"]}
        for each in trainings
        for row in each.rows
        if row.get("curvature") is not None
    ]
    if not rows:
        return "All trainings diverged before the curvature was read."
    figure = _by_beta2(rows, "curvature", "learning rate times curvature", yscale="log")
    for ax in figure.axes:
        ax.axhline(EDGE, color="grey", linewidth=0.8)
    description = (
        "Learning rate times curvature around the odd batch by beta2, without clipping; the line "
        f"is at {EDGE:.0f}, beyond which Adam's steps overshoot; one seed"
    )
    return figures.save(figure, out, "curvature", description)


def _by_beta2(rows: Sequence[Row], y: str, ylabel: str, yscale: str = "linear") -> Any:
    return figures.lines(
        rows,
        x="step",
        y=y,
        by="beta2",
        panel="clip",
        yscale=yscale,
        xlabel="steps after the odd batch",
        ylabel=ylabel,
    )
