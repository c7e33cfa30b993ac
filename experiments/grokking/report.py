"""When arms fit and when they generalise; what the lines of the protocol say; accuracies."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.grokking.measure import GENERALISES
from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

_LATE = 5.0  # steps until it generalises over steps until it fits
_STANDARD = 0.1
_SURE, _NONE = 0.01, 0.1  # p of equal means


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of arms, what the lines say of them, and accuracies over training."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    trainings = [row for row in rows if row["kind"] == "training"]
    results.write_csv(out / f"{part}.csv", trainings)
    arms = {arm: members for (arm,), members in results.group(trainings, "arm").items()}
    text, numbers = LINES.get(part, _no_line)(arms)
    numbers |= {f"{arm}/generalise": len(_known(members)) for arm, members in arms.items()}
    results.write_summary(out, {f"{part}/{name}": value for name, value in numbers.items()})
    figure = figures.lines(
        _readings(rows),
        x="step",
        y="test",
        by="arm",
        xlabel="step",
        ylabel="accuracy on pairs not trained on",
        xscale="log",
    )
    figure.axes[0].set(ylim=(0, 1))  # bands of seeds that did and did not reach beyond
    title = f"Accuracy on pairs that were not trained on, over training: {part}"
    table = results.table([_line(arm, members) for arm, members in arms.items()])
    return "\n\n".join(filter(None, [table, text, figures.save(figure, out, part, title)]))


def _readings(rows: Sequence[Row]) -> list[Row]:
    """The readings after step 0. One that generalised, and so ended, stays at its last one for as
    long as others of its arm go on: a mean of the others alone would fall as seeds succeed."""
    readings = [row for row in rows if row["kind"] == "reading" and row["step"]]
    for members in results.group(readings, "arm").values():
        steps = sorted({row["step"] for row in members})
        for seed in results.group(members, "seed").values():
            if max(row["test"] for row in seed) > GENERALISES:
                readings += [seed[-1] | {"step": step} for step in steps if step > seed[-1]["step"]]
    return readings


_Arms = Mapping[Any, Sequence[Row]]
_Said = tuple[str, dict[str, float]]


def delay(row: Row) -> float:
    """Steps until a training generalises over those until it fits; where it does not generalise the
    least that this may be; NaN where it does not fit."""
    if row["fits_at"] is None:
        return math.nan
    return (row["generalises_at"] or row["step"]) / max(row["fits_at"], 1)


def _decay(arms: _Arms) -> _Said:
    words = {True: "held", False: "contradicted"}
    lines, numbers = [], {}
    if _STANDARD in arms:
        ratios = [delay(row) for row in arms[_STANDARD]]
        late = "undecided"
        if all(ratio > _LATE for ratio in ratios) and len(_known(arms[_STANDARD])) > 1:
            late = "held"
        elif all(ratio <= _LATE for ratio in ratios) and _all(arms[_STANDARD]):
            late = "contradicted"
        lines.append(
            f"*Models generalise long after they fit*: **{late}**; at a decay of {_STANDARD:g} "
            f"after {', '.join(f'{ratio:.1f}' for ratio in ratios)} times as many steps"
            f"{'' if _all(arms[_STANDARD]) else ', or more: not all did'}."
        )
        numbers["delay"] = float(np.mean(ratios))
    if 0.0 in arms:
        never = not _known(arms[0.0])
        fit = all(row["fits_at"] is not None for row in arms[0.0])
        whole = len({row["step"] for row in arms[0.0]}) == 1  # none diverged
        verdict = words[never] if fit and whole or not never else "undecided"
        lines.append(
            f"*Without decay they do not*: **{verdict}**; {len(_known(arms[0.0]))} of "
            f"{len(arms[0.0])} did."
        )
    points = [
        {"seed": row["seed"], "x": math.log(float(str(decay))), "y": math.log(delay(row))}
        for decay, members in arms.items()
        if decay and _known(members)  # one that is too strong for all seeds has only bounds
        for row in members
    ]
    points = [point for point in points if math.isfinite(point["y"])]
    start = "*The delay falls with the decay*"
    groups = results.group(points, "seed")
    if len({point["x"] for point in points}) < 3 or len(points) < len(groups) + 2:
        return "\n\n".join([*lines, f"{start}: **undecided**; too few of them fit."]), numbers
    slope = results.common_slope(
        ([point["x"] for point in members], [point["y"] for point in members])
        for members in groups.values()
    )
    verdict = words[slope.value < 0] if slope.counts else "undecided"
    lines.append(f"{start}: **{verdict}**; its log has a slope of {slope:+} on that of the decay.")
    numbers |= {"slope": slope.value, "slope/half_width": slope.half_width}
    return "\n\n".join(lines), numbers


def _schemes(arms: _Arms) -> _Said:
    groups = {arm: np.log2(_known(members)) for arm, members in arms.items() if _all(members)}
    named = ", ".join(str(arm) for arm in arms if arm not in groups)
    missing = f" Not by all seeds, and left out: {named}." if named else ""
    start = "*The scheme decides when they generalise*"
    if len(groups) < 3 or min(map(len, groups.values())) < 2:
        return f"{start}: **undecided**; too few generalise.{missing}", {}
    deviation = results.pooled_deviation(groups.values()).value
    spread = float(np.std([np.mean(group) for group in groups.values()], ddof=1))
    p = results.analysis_of_variance(groups.values())
    held = spread > 2 * deviation and p < _SURE
    verdict = "held" if held else "contradicted" if p > _NONE and not named else "undecided"
    text = (
        f"{start}: **{verdict}**; log2 of the step deviates by {spread:.2f} between schemes and by "
        f"{deviation:.2f} between seeds, p = {p:.2g}.{missing}"
    )
    return text, {"between": spread, "within": deviation, "p": p}


def _no_line(arms: _Arms) -> _Said:
    return "", {}


LINES: dict[str, Callable[[_Arms], _Said]] = {"decay": _decay, "schemes": _schemes}


def _known(rows: Iterable[Row]) -> list[int]:
    return [row["generalises_at"] for row in rows if row["generalises_at"] is not None]


def _all(rows: Sequence[Row]) -> bool:
    return len(_known(rows)) == len(rows)


def _line(arm: object, rows: Sequence[Row]) -> Row:
    delays = [delay(row) for row in rows]
    return {
        "arm": f"{arm:g}" if isinstance(arm, float) else str(arm),
        "fits at": _steps(row["fits_at"] for row in rows),
        "generalises at": _steps(row["generalises_at"] for row in rows),
        "delay": f"{np.median(delays):.1f}" + ", or more" * (not _all(rows))
        if np.isfinite(delays).all()
        else "",
        "train, end": float(np.mean([row["train"] for row in rows])),
        "test": float(np.mean([row["test"] for row in rows])),
        "commuted": float(np.mean([row["commuted"] for row in rows])),
        "others": float(np.mean([row["others"] for row in rows])),
    }


def _steps(steps: Iterable[int | None]) -> str:
    return ", ".join("never" if step is None else str(step) for step in steps)
