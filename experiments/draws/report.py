"""Losses of draws at their best learning rates and at one for all; the lines of the protocol."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.draws.sweep import DEEP, RATES
from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.models.transformer.draws import DRAWS
from transformer_jax.tools.reports.intervals import Estimate

COUNTS = 0.012  # nats, that resolve with three seeds
_SURE, _NONE = 0.01, 0.1  # p of equal means


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of draws, what the lines say, losses by learning rate and streams by layer."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    trainings = [row for row in rows if row["kind"] != "layer"]
    ends = [row for row in rows if row["kind"] == "layer" and row["step"]]
    results.write_csv(out / f"{part}.csv", trainings)
    results.write_csv(out / f"{part}_layers.csv", [row for row in rows if row["kind"] == "layer"])
    by_draw = {draw: members for (draw,), members in results.group(trainings, "draw").items()}
    losses = fresh(trainings)
    deviation = results.pooled_deviation(losses.values())
    lines = []
    for draw, members in by_draw.items():
        line = _line(draw, members, [row for row in ends if row["draw"] == draw])
        if {draw, "xavier"} <= losses.keys():
            against = results.difference(losses[draw], losses["xavier"], deviation)
            line["against xavier"] = "" if draw == "xavier" else f"{against:+}"
        lines.append(line)
    at_start = {row["draw"]: row["loss"] for row in trainings if _at_start(row)}
    draws = {"shallow": list(DRAWS), "deep": DEEP}[part]
    text, numbers = verdicts(losses, at_start, whole={*draws} <= losses.keys())
    numbers |= {draw: float(np.mean(cell)) for draw, cell in losses.items()}
    results.write_summary(out, {f"{part}/{name}": value for name, value in numbers.items()})
    searches = figures.lines(
        [row for row in trainings if row["kind"] == "search" and row["loss"] is not None],
        x="learning_rate",
        y="loss",
        by="draw",
        xlabel="learning rate",
        ylabel="validation loss (nats a byte)",
        xscale="log",
    )
    texts = [results.table(lines), text]
    title = f"Validation loss over the learning rate, by draw, one seed: {part}"
    texts.append(figures.save(searches, out, f"{part}_rates", title))
    if ends:
        streams = figures.lines(
            ends,
            x="layer",
            y="stream",
            by="draw",
            xlabel="layer",
            ylabel="variance of the stream",
            yscale="log",
        )
        title = f"Variance of the residual stream after each layer of trained models: {part}"
        texts.append(figures.save(streams, out, f"{part}_streams", title))
    return "\n\n".join(texts)


def fresh(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Losses of fresh seeds by draw; of those all of whose seeds have one."""
    groups = results.group([row for row in rows if row["kind"] == "fresh"], "draw")
    losses = {draw: [row["loss"] for row in members] for (draw,), members in groups.items()}
    return {draw: cell for draw, cell in losses.items() if None not in cell}


def verdicts(
    losses: Mapping[str, Sequence[float]],
    at_start: Mapping[str, float | None],
    *,
    whole: bool = True,
) -> tuple[str, dict[str, float]]:
    """What the lines say of the fresh seeds' losses, each draw at its own rate.

    at_start: losses of the search's seed at the rate that all draws share. whole: whether all
      draws of the sweep have one: a line on all of them says nothing where one diverged.
    """
    groups = [cell for cell in losses.values() if len(cell) > 1]
    means = [float(np.mean(group)) for group in groups]
    spread = max(means) - min(means) if means else math.nan
    p = results.analysis_of_variance(groups) if len(groups) > 2 else math.nan
    shared = [loss for loss in at_start.values() if loss is not None]
    before = max(shared) - min(shared) if shared else math.nan
    differ = "undecided"
    if whole and p < _SURE and spread > COUNTS:
        differ = "held"
    elif whole and (p > _NONE or spread <= COUNTS):
        differ = "contradicted"
    lines = [
        f"*Draws differ, each at its own rate*: **{differ}**; means of fresh seeds are up to "
        f"{spread:.3f} nats apart, p = {p:.2g}; at one rate for all, one seed, {before:.3f}."
    ]
    numbers = {"range": spread, "range/one_rate": before, "p": p}
    if {"normal", "gpt2"} <= losses.keys():
        deviation = results.pooled_deviation(groups)
        gain = results.difference(losses["normal"], losses["gpt2"], deviation)
        lines.append(
            f"*To scale what ends a branch is to scale the rate*: **{_alike(gain)}**; at its own "
            f"rate the scaled draw (`gpt2`) is {gain:+} nats below `normal`."
        )
        numbers |= {"scaled": gain.value, "scaled/error": gain.error}
    return "\n\n".join(lines), numbers


def _alike(gain: Estimate) -> str:
    """Whether two arms are within `COUNTS`: contradicted where they are beyond by two errors."""
    if not math.isfinite(gain.error):
        return "undecided"
    if abs(gain.value) < COUNTS:
        return "held"
    beyond = abs(gain.value) - COUNTS > 2 * gain.error
    return "contradicted" if beyond else "undecided"


def _at_start(row: Row) -> bool:
    return row["kind"] == "search" and row["learning_rate"] == RATES[row["part"]]


def _line(draw: str, rows: Sequence[Row], ends: Sequence[Row]) -> Row:
    fresh_rows = [row for row in rows if row["kind"] == "fresh"]
    shared = next((row["loss"] for row in rows if _at_start(row)), None)
    line: Row = {
        "draw": draw,
        "rate": rates.chosen_rate(rows),
        "loss": results.interval(row["loss"] for row in fresh_rows) or "diverged",
        "at one rate": "diverged" if shared is None else f"{shared:.3f}",
        "against xavier": "",
    }
    last = max((row["layer"] for row in ends), default=0)
    for name in ("stream", "branch", "similarity", "angle"):
        values = [row[name] for row in ends if row["layer"] == last]
        line[f"{name}, last layer"] = float(np.mean(values)) if values else None
    return line
