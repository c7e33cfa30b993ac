"""What each arm answers right at the end, when it began to, and what the lines say of it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from experiments.miniatures.sweep import HOPS, LAYERS, POSITIONS, SCHEMES, TASKS
from transformer_jax.tools.reports.intervals import Estimate

_LEARNS = 0.5  # accuracy from which on a seed counts as one that learns
_SOLVED, _ABOVE_CHANCE = 0.9, 0.1  # of the lines of depth
_BETWEEN = 0.3, 0.8  # accuracy at a size that is neither too small nor too large
_Z = 1.959964  # of a 95 % interval

_Said = tuple[str, Mapping[str, float]]


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of arms, what the lines say of them, and accuracy over training."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    results.write_csv(out / f"{part}.csv", rows)
    names = [name for name in runs[0].labels if name != "part"]
    arms = results.group(rows, *names)
    end = _end(rows)
    named = {key: dict(zip(names, key, strict=True)) for key in arms}
    lines = [named[key] | _line(members, end) for key, members in arms.items()]
    text, numbers = {"sizes": _sizes, "depth": _depth}.get(part, _schemes)(rows)
    results.write_summary(out, {f"{part}/{name}": value for name, value in numbers.items()})
    diverged = [
        f"{' '.join(map(str, named[key].values()))}, seed {row['seed']}"
        for key, members in arms.items()
        for row in last(members, end)
        if row["step"] < end
    ]
    if diverged:
        text += f"\n\nDiverged, so that nothing is right: {'; '.join(diverged)}."
    return "\n\n".join([results.table(lines), text, _figure(part, rows, out)])


def _figure(part: str, rows: Sequence[Row], out: Path) -> str:
    task = part.capitalize()
    by, panel, title = {
        "sizes": ("size", "task", "Accuracy with Pre-LN over training, by task and size"),
        "depth": ("layers", "hops", "Accuracy of Depo over training, by hops and layers"),
    }.get(part, ("scheme", "positions", f"Accuracy of {task} over training, by positions"))
    by_hops = part == "depth"
    points = [row | {"hops": row["of"]} for row in rows if (row["of"] != "all") == by_hops]
    figure = figures.lines(
        points, x="step", y="accuracy", by=by, panel=panel, xlabel="step", ylabel="accuracy"
    )
    return figures.save(figure, out, part, title)


# Numbers -----------------------------------------------------------------------------------------


def last(rows: Iterable[Row], end: int, of: str = "all") -> list[Row]:
    """The last reading of each seed of each arm, of answers of one kind.

    end: the last step of all; a training that ends before it has diverged: nothing it answers is
      right.
    """
    labels = ("task", "size", "layers", "scheme", "positions", "seed")
    rows = [row for row in rows if row["of"] == of]
    readings = {tuple(row.get(name) for name in labels): row for row in rows}
    return [row if row["step"] == end else row | {"accuracy": 0.0} for row in readings.values()]


def _end(rows: Iterable[Row]) -> int:
    return max(row["step"] for row in rows)


def logit(row: Row) -> float:
    """ln of right over wrong answers, each with half an answer more, so that it is finite."""
    right = row["accuracy"] * row["answers"]
    return math.log((right + 0.5) / (row["answers"] - right + 0.5))


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    share, spread = hits / count, _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def begins(rows: Iterable[Row]) -> list[int | None]:
    """t* of each seed: the first read step from which it learns; None: it never does."""
    seeds = results.group((row for row in rows if row["of"] == "all"), "seed")
    return [
        next((row["step"] for row in curve if row["accuracy"] >= _LEARNS), None)
        for curve in seeds.values()
    ]


def _line(rows: Sequence[Row], end: int) -> Row:
    """What the table says of an arm."""
    ends = last(rows, end)
    learn = sum(row["accuracy"] >= _LEARNS for row in ends)
    low, high = wilson(learn, len(ends))
    steps = [step for step in begins(rows) if step is not None]
    kinds = [kind for kind in dict.fromkeys(row["of"] for row in rows) if kind != "all"]
    by_kind = [f"{_mean(row['accuracy'] for row in last(rows, end, kind)):.2f}" for kind in kinds]
    line = {
        "learn": f"{learn} of {len(ends)} ({low:.2f} to {high:.2f})",
        "t*": f"{np.exp(_mean(map(math.log, steps))):.0f}" if steps else "never",
        "accuracy": results.interval(row["accuracy"] for row in ends),
        "logit accuracy": results.interval(map(logit, ends)),
    }
    if len(kinds) > 1:
        line[f"by {kinds[0]} to {kinds[-1]}"] = ", ".join(by_kind)
    if "divergence" in ends[0]:
        line["divergence"] = results.interval(row["divergence"] for row in ends)
    return line


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


# Verdicts ----------------------------------------------------------------------------------------


def _sizes(rows: Sequence[Row]) -> _Said:
    """Of each task, the sizes that are neither too small nor too large."""
    ends = results.group(last(rows, _end(rows)), "task", "size")
    means = {key: _mean(row["accuracy"] for row in members) for key, members in ends.items()}
    low, high = _BETWEEN
    between = {
        task: [size for (name, size), mean in means.items() if name == task and low <= mean <= high]
        for task in TASKS
    }
    listing = "; ".join(f"{task} {', '.join(sizes) or 'none'}" for task, sizes in between.items())
    numbers = {f"{task}/{size}": mean for (task, size), mean in means.items()}
    return f"Accuracy of {low} to {high} at: {listing}.", numbers


def _depth(rows: Sequence[Row]) -> _Said:
    """The lines of depth; undecided without all layers and three seeds."""
    names, end = int(HOPS.split()[0]), _end(rows)
    cells = {
        (layers, hops): [row["accuracy"] for row in last(members, end, str(hops))]
        for (layers,), members in results.group(rows, "layers").items()
        for hops in (1, 2, 4)
    }
    complete = all(len(cells.get((layers, 1), [])) >= 3 for layers in LAYERS)

    def solved(layers: int, hops: int) -> int:
        return sum(accuracy > _SOLVED for accuracy in cells.get((layers, hops), []))

    at_chance = sum(accuracy <= 1 / names + _ABOVE_CHANCE for accuracy in cells.get((1, 1), []))
    seeds = len(cells.get((1, 1), []))
    induction = at_chance == seeds and solved(2, 1) >= 2
    doubling = solved(3, 2) >= 2 and not solved(2, 4)
    text = "\n\n".join(
        [
            f"*One hop takes two layers*: **{_verdict(complete, induction, solved(1, 1) > 0)}**; "
            f"{at_chance} of {seeds} seeds of one layer are within 0.1 of chance, and "
            f"{solved(2, 1)} of two layers are above 0.9.",
            f"*Twice the hops take a layer more*: "
            f"**{_verdict(complete, doubling, solved(2, 4) > 0)}**; above 0.9 are {solved(3, 2)} "
            f"seeds of three layers at two hops, and {solved(2, 4)} of two at four.",
        ]
    )
    numbers = {f"{layers}/{hops}": _mean(cell) for (layers, hops), cell in cells.items() if cell}
    return text, numbers


def _schemes(rows: Sequence[Row]) -> _Said:
    """The lines of schemes and positions, and which arms differ from Pre-LN.

    Undecided without all arms and two seeds of each, and where none learns.
    """
    ends = results.group(last(rows, _end(rows)), "scheme", "positions")
    logits = {key: [logit(row) for row in members] for key, members in ends.items()}
    complete = len(logits) == len(SCHEMES) * len(POSITIONS)
    complete &= all(len(cell) >= 2 for cell in logits.values())
    complete &= any(row["accuracy"] >= _LEARNS for members in ends.values() for row in members)
    pooled = results.pooled_deviation(logits.values())
    less = {
        key: results.difference(cell, logits["pre_ln", key[1]], pooled)
        for key, cell in logits.items()
        if key[0] != "pre_ln"
    }
    counting = [
        f"{scheme} with {positions} {_signed(each)}"
        for (scheme, positions), each in less.items()
        if _counts(each)
    ]
    rotary = [cell for (_, positions), cell in logits.items() if positions == "rotary"]
    p = results.analysis_of_variance(rotary) if complete else math.nan
    with_them, without = (
        [value for (_, position), values in logits.items() if position == kind for value in values]
        for kind in ("rotary", "none")
    )
    gain = results.difference(with_them, without, pooled)
    better, worse = (_counts(gain) and sign * gain.value > 0 for sign in (1, -1))
    text = "\n\n".join(
        [
            f"*Schemes decide*: **{_verdict(complete, p < 0.01, p > 0.1)}**; with rotary positions "
            f"p = {p:.2g}. Beyond two errors of Pre-LN with the same positions: "
            f"{'; '.join(counting) or 'none'}.",
            f"*Without positions it is worse*: **{_verdict(complete, better, worse)}**; the logit "
            f"with rotary ones is {_signed(gain)} higher.",
        ]
    )
    numbers = {f"{scheme}/{kind}": _mean(cell) for (scheme, kind), cell in logits.items()}
    return text, numbers | {"p": p, "rotary_less_none": gain.value}


def _counts(difference: Estimate) -> bool:
    return abs(difference.value) > 2 * difference.error


def _signed(difference: Estimate) -> str:
    return f"{difference.value:+.2f} (error {difference.error:.2f})"


def _verdict(complete: bool, held: bool, contradicted: bool) -> str:
    """A line whose runs are not all there says nothing."""
    if not complete:
        return "undecided"
    return "held" if held else "contradicted" if contradicted else "undecided"
