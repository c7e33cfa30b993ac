"""Losses by weight decay, width and epochs; best decays, and the lines of the protocol."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from experiments.repetition.sweep import RATE, SLOWER, STANDARD, WIDTHS

COUNTS = 0.012  # nats
_MORE, _ALIKE = 1.0, 0.5  # decades between best decays
_FOLLOWS, _STAYS = 0.45, 0.15  # of the 0.60 decades by which the rates differ
_DRAWS = 1000
_LOW, _HIGH = -1, 1  # the edge at which a best decay lies


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of a sweep, its figures, and the lines that its rows and those of others decide."""
    rows = results.rows(runs)
    epochs, rate = rows[0]["epochs"], rows[0]["rate"]
    name = f"{epochs}_epochs" + "_slower" * (rate != RATE)
    trainings = [row for row in rows if row["kind"] != "reading"]
    results.write_csv(out / f"{name}.csv", trainings)
    grid = [row for row in trainings if row["kind"] == "grid"]
    fresh = [row for row in trainings if row["kind"] == "fresh"]
    text, numbers = widths(fresh) if fresh else ("", {})
    deviation = (results.read_json(out / "summary.json") | numbers).get("deviation")
    for (width,), members in results.group(grid, "width").items():
        log10, edge = best(members)
        at = f"{epochs}/{width}/{rate:g}"
        numbers |= {f"best/{at}": log10, f"edge/{at}": edge}
        if deviation is not None:
            numbers[f"error/{at}"] = error(members, deviation)
    results.write_summary(out, numbers)
    known = results.read_json(out / "summary.json")
    optima = ", ".join(
        f"{10 ** numbers[key]:.2g}{', the edge,' * bool(numbers[key.replace('best', 'edge')])} at "
        f"width {key.split('/')[2]}"
        for key in numbers
        if key.startswith("best/")
    )
    texts = [
        results.table([_line(key, members) for key, members in _cells(trainings).items()]),
        f"Best decays, of a parabola through the losses at the end: {optima}.",
        text,
        repeated(known),
        constant(known),
    ]
    over = figures.lines(
        [row for row in grid if row["decay"] and row["loss"] is not None],
        x="decay",
        y="loss",
        by="width",
        xlabel="weight decay",
        ylabel="validation loss (nats a character)",
        xscale="log",
    )
    setting = f"{epochs} epochs at a rate of {rate:g}"
    title = f"Validation loss at the end over the weight decay, by width: {setting}"
    texts.append(figures.save(over, out, f"{name}_decays", title))
    middle = [row for row in rows if row["kind"] == "reading" and row["width"] == 64]
    # Of the grid: fresh seeds are of two decays alone.
    first = min((row["seed"] for row in middle), default=0)
    curves = figures.lines(
        [row | {"by": f"decay {row['decay']:g}"} for row in middle if row["seed"] == first],
        x="step",
        y="loss",
        by="by",
        xlabel="step",
        ylabel="validation loss (nats a character)",
    )
    title = f"Validation loss over training, by weight decay, width 64: {setting}"
    texts.append(figures.save(curves, out, f"{name}_curves", title))
    return "\n\n".join(filter(None, texts))


def best(grid: Sequence[Row]) -> tuple[float, int]:
    """log10 of the best decay above 0 by the mean losses at the end, and the edge of the grid at
    which it lies; 0: inside."""
    losses = {
        decay: None if None in (cell := [row["loss"] for row in rows]) else float(np.mean(cell))
        for (decay,), rows in results.group([row for row in grid if row["decay"]], "decay").items()
    }
    optimum = rates.optimum(losses)
    middle = math.log2(math.sqrt(min(losses) * max(losses)))
    edge = 0 if optimum.inside else _HIGH if optimum.log2_rate > middle else _LOW
    return optimum.log2_rate * math.log10(2), edge


def error(grid: Sequence[Row], deviation: float) -> float:
    """The deviation of log10 of the best decay between seeds whose losses deviate so much."""
    draw = np.random.default_rng(0)
    whole = [row for row in grid if row["loss"] is not None]
    drawn = (
        [row | {"loss": row["loss"] + draw.normal(0, deviation)} for row in whole]
        for _ in range(_DRAWS)
    )
    return float(np.std([best(rows)[0] for rows in drawn]))


_Numbers = Mapping[str, float | None]


def repeated(numbers: _Numbers) -> str:
    """The line on eight epochs against one, of summary.json; a best decay at an edge bounds it."""
    cells = [(_known(numbers, 1, width, RATE), _known(numbers, 8, width, RATE)) for width in WIDTHS]
    pairs = [(one, eight) for one, eight in cells if one and eight]
    start = "*Text that is read eight times asks for ten times the decay*"
    if len(pairs) < len(WIDTHS):
        return f"{start}: **undecided**; not run at all widths, once and eight times."
    moved = [eight[0] - one[0] for one, eight in pairs]
    mean = float(np.mean(moved))
    # An edge on the other side could only bring the two nearer.
    at_least = all(one[1] != _HIGH and eight[1] != _LOW for one, eight in pairs)
    inside = all(one[1] == eight[1] == 0 for one, eight in pairs)
    verdict = "undecided"
    if mean >= _MORE and at_least:
        verdict = "held"
    elif mean <= _ALIKE and inside:
        verdict = "contradicted"
    edges = sum(bool(edge) for pair in pairs for _, edge, _ in pair)
    return (
        f"{start}: **{verdict}**; the best decay moves by {mean:+.2f} decades "
        f"({', '.join(f'{each:+.2f}' for each in moved)} by width), {edges} of {2 * len(pairs)} "
        "at an edge of the grid."
    )


def constant(numbers: _Numbers) -> str:
    """The line on the time constant, of the best decays at two rates in summary.json, beyond two of
    their errors; one at an edge leaves it open."""
    start = "*It is the product of rate and decay that is best*"
    fast, slow = (_known(numbers, 8, 64, rate) for rate in (RATE, SLOWER))
    if fast is None or slow is None:
        return f"{start}: **undecided**; not run at both rates."
    moved, verdict = slow[0] - fast[0], "undecided"
    between = math.hypot(fast[2], slow[2])
    if not (fast[1] or slow[1]):
        if moved - 2 * between > _FOLLOWS:
            verdict = "held"
        elif moved + 2 * between < _STAYS:
            verdict = "contradicted"
    return (
        f"{start}: **{verdict}**; a quarter of the rate moves it by {moved:+.2f} (error "
        f"{between:.2f}) decades of 0.60."
    )


def _known(
    numbers: _Numbers, epochs: int, width: int, rate: float
) -> tuple[float, float, float] | None:
    """A best decay, its edge, and its error: NaN where no deviation of seeds was known."""
    at = f"{epochs}/{width}/{rate:g}"
    value, edge = numbers.get(f"best/{at}"), numbers.get(f"edge/{at}")
    error = numbers.get(f"error/{at}")
    if value is None or edge is None:
        return None
    return value, edge, math.nan if error is None else error


def widths(fresh: Sequence[Row]) -> tuple[str, dict[str, float]]:
    """The line on widths at the standard decay and at the best one, of fresh seeds.

    Where the standard decay is the best one, its trainings stand for both.
    """
    standard, tuned = ({}, {})
    for (width,), rows in results.group(fresh, "width").items():
        decays = results.group(rows, "decay")
        standard[width] = _losses(decays[(STANDARD,)])
        tuned[width] = _losses(list(decays.values())[-1])
    start = "*Width hurts at the standard decay, and helps at the best one*"
    if not {*WIDTHS} <= standard.keys():
        return f"{start}: **undecided**; not run at all widths.", {}
    small, middle, large = WIDTHS
    cells = results.group(fresh, "width", "decay").values()
    deviation = results.pooled_deviation(map(_losses, cells))
    rise = results.difference(standard[large], standard[middle], deviation)
    falls = [
        results.difference(tuned[a], tuned[b], deviation)
        for a, b in ((small, middle), (middle, large))
    ]
    verdicts = [results.above(each, COUNTS) for each in (rise, *falls)]
    verdict = "undecided"
    if "contradicted" in verdicts:
        verdict = "contradicted"
    elif {*verdicts} == {"held"}:
        verdict = "held"
    text = (
        f"{start}: **{verdict}**; from width {middle} to {large} the loss changes by {rise:+} at "
        f"{STANDARD:g}; at the best decays it falls by {falls[0]:+} and {falls[1]:+} with each "
        "doubling."
    )
    changes = {"rise": rise.value, "fall/64": falls[0].value, "fall/128": falls[1].value}
    return text, {"deviation": deviation.value} | changes


def _losses(rows: Sequence[Row]) -> list[float]:
    return [math.nan if row["loss"] is None else row["loss"] for row in rows]


def _cells(trainings: Sequence[Row]) -> dict[tuple, list[Row]]:
    return results.group(trainings, "width", "decay", "kind")


def _line(key: tuple, rows: Sequence[Row]) -> Row:
    width, decay, kind = key
    gaps = [None if None in (row["loss"], row["train"]) else row["loss"] - row["train"]
            for row in rows]  # fmt: skip
    return {
        "width": width,
        "decay": f"{decay:g}",
        "seeds": f"{len(rows)}, fresh" if kind == "fresh" else f"{len(rows)}",
        "loss": results.interval(row["loss"] for row in rows) or "diverged",
        "least on the way": results.interval(row["least"] for row in rows),
        "above training's": results.interval(gaps),
        "norm": results.interval(row["norm"] for row in rows),
    }
