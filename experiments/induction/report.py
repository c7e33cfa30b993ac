"""When each arm solves the repeats, at its best rate; the lines of the protocol; curves."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row

_SOLVED, _NOT_SOLVED = 0.9, 0.1


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table of arms, what the lines say of them, and the progress of the arms' best rates."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    trainings = [row for row in rows if row["kind"] == "training"]
    results.write_csv(out / f"{part}.csv", trainings)
    best = {arm: _best(members) for (arm,), members in results.group(trainings, "arm").items()}
    table = results.table([_line(arm, members) for arm, members in best.items()])
    lines, numbers = _VERDICTS.get(part, _no_line)(best, trainings)
    results.write_summary(out, {f"{part}/{name}": value for name, value in numbers.items()})
    ends = {arm: min(row["step"] for row in members) for arm, members in best.items()}
    figure = figures.lines(
        [
            row
            for row in rows
            if row["kind"] == "reading"
            and _at_best_rate(row, best)
            and row["step"] <= ends[row["arm"]]
        ],
        x="step",
        y="progress",
        by="arm",
        xlabel="step",
        ylabel="progress on repeats",
    )
    title = (
        f"Progress on repeats over training, by {part}: the mean of seeds at the best rate, up to "
        "where the first of them ends"
    )
    return "\n\n".join(filter(None, [table, lines, figures.save(figure, out, part, title)]))


def _best(rows: Sequence[Row]) -> list[Row]:
    """Those at the rate at which most are solved, and of such rates that with the least t*."""

    def rank(members: Sequence[Row]) -> tuple[int, float]:
        solved = [row["at_50"] for row in members if row["at_50"] is not None]
        return -len(solved), float(np.mean(np.log2(solved))) if solved else math.inf

    return min(results.group(rows, "learning_rate").values(), key=rank)


def _line(arm: object, rows: Sequence[Row]) -> Row:
    """What the table says of an arm; of the end, by trainings that were not ended at t*."""
    ended = [row for row in rows if row["step"] != row["at_50"]]

    def at_end(name: str) -> str:
        few = f" ({len(ended)} of {len(rows)})" if 0 < len(ended) < len(rows) else ""
        mean = _mean(row.get(name) for row in ended)
        return mean + few if mean else ""

    return {
        "arm": str(arm),
        "rate": f"{rows[0]['learning_rate']:g}",
        "solved": f"{sum(row['at_50'] is not None for row in rows)} of {len(rows)}",
        "t*": _steps(row["at_50"] for row in rows),
        "abruptness": _mean(map(_abruptness, rows)),
        "prefix 0.3 at": _steps(row["prefix_at"] for row in rows),
        "previous 0.3 at": _steps(row["previous_at"] for row in rows),
        "branch at": _steps(row["branch_at"] for row in rows),
        **{name: at_end(name) for name in ("progress", "prefix", "previous", "without", "control")},
    }


def _abruptness(row: Row) -> float | None:
    return None if row["at_75"] is None else math.log(row["at_75"] / row["at_25"])


def _steps(values) -> str:
    """The geometric mean of those that are there, with their range."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return "never"
    mean = float(np.exp(np.mean(np.log(np.maximum(known, 1)))))
    return f"{mean:.0f} ({known[0]} to {known[-1]})" if known[0] < known[-1] else f"{known[0]}"


def _mean(values) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.2f}" if known else ""


def _at_best_rate(row: Row, best: Mapping[object, Sequence[Row]]) -> bool:
    return row["learning_rate"] == best[row["arm"]][0]["learning_rate"]


_Verdict = tuple[str, Mapping[str, float]]


def _depth(best: Mapping[int, list[Row]], trainings: Sequence[Row]) -> _Verdict:
    one, two = best[1], best.get(2, [])
    unsolved = sum(row["progress"] <= _NOT_SOLVED for row in one)
    solved = sum(row["progress"] >= _SOLVED for row in two)
    any_solved = any(row["progress"] >= _SOLVED for row in one)
    held = unsolved == len(one) and solved >= 0.8 * len(two)
    takes = "held" if held else "contradicted" if any_solved else "undecided"
    gaps = [row["prefix_at"] / row["at_50"] - 1 for row in two if row["at_50"] and row["prefix_at"]]
    sharp = [x for x in map(_abruptness, two) if x is not None]
    near, far = (sum(abs(gap) <= most for gap in gaps) for most in (0.1, 0.2))
    with_drop = near >= 0.8 * len(two) and sum(x <= 0.5 for x in sharp) >= 0.8 * len(two)
    against = len(gaps) - far >= 2 or any(x > 1 for x in sharp)
    forms = "held" if with_drop else "contradicted" if against else "undecided"
    ablated = [row for row in two if row.get("without") is not None]
    lost, spent = (
        [1 - row[name] / row["progress"] for row in ablated] for name in ("without", "control")
    )
    carries = "undecided"  # no head matches prefixes
    if ablated:
        held = np.mean(lost) >= 0.8 and np.mean(spent) <= 0.2
        carries = "held" if held else "contradicted"
    numbers = {
        "one_layer/at_most_0.1": unsolved,
        "two_layers/at_least_0.9": solved,
        "prefix_within_10_percent": near,
        "lost_without": float(np.mean(lost)) if lost else math.nan,
        "lost_control": float(np.mean(spent)) if spent else math.nan,
    }
    text = (
        f"*It takes two layers*: **{takes}**; of one layer {unsolved} of {len(one)} seeds stay at "
        f"0.1 or below, of two {solved} of {len(two)} reach 0.9.\n\n"
        f"*Heads form with the drop*: **{forms}**; the prefix score is 0.3 within 10 % of t* in "
        f"{near} of {len(two)} seeds, and within 20 % in {far}.\n\n"
        f"*They carry it*: **{carries}**; without them "
        f"{numbers['lost_without']:.2f} of the progress is lost, without as many others "
        f"{numbers['lost_control']:.2f}."
    )
    return text, numbers


def _schemes(best: Mapping[str, list[Row]], trainings: Sequence[Row]) -> _Verdict:
    times = {
        arm: np.log2([row["at_50"] for row in rows if row["at_50"] is not None])
        for arm, rows in best.items()
    }
    groups = [group for group in times.values() if len(group) > 1]
    missing = [arm for arm, rows in best.items() if any(row["at_50"] is None for row in rows)]
    if len(groups) < 2:
        return "Fewer than two schemes are solved by two seeds.", {}
    deviation = results.pooled_deviation(groups).value
    spread = float(np.std([np.mean(group) for group in groups], ddof=1))
    p = results.analysis_of_variance(groups)
    held = spread > 2 * deviation and p < 0.01
    verdict = "held" if held else "contradicted" if p > 0.1 else "undecided"
    text = (
        f"*Schemes decide when*: **{verdict}**; log2 t* deviates by {spread:.2f} between schemes "
        f"and by {deviation:.2f} between seeds, p = {p:.2g}."
    )
    if missing:
        text += f" Not solved by all seeds: {', '.join(missing)}."
    return text, {"between": spread, "within": deviation, "p": p}


def _draws(best: Mapping[str, list[Row]], trainings: Sequence[Row]) -> _Verdict:
    small = [row for row in trainings if row["arm"] == "normal"]
    by_rate = {
        rate: sum(row["at_50"] is not None for row in members)
        for (rate,), members in results.group(small, "learning_rate").items()
    }
    xavier = sum(row["at_50"] is not None for row in best["xavier"])
    fails = all(count <= 1 for count in by_rate.values()) and xavier >= 2
    verdict = "held" if fails else "contradicted" if max(by_rate.values()) >= 2 else "undecided"
    counts = ", ".join(f"{count} of 3 at {rate:g}" for rate, count in by_rate.items())
    text = f"*Draws decide whether*: **{verdict}**; with deviation 0.02 solved are {counts}."
    return text, {f"normal/{rate:g}": count for rate, count in by_rate.items()}


def _no_line(best: Mapping[object, list[Row]], trainings: Sequence[Row]) -> _Verdict:
    numbers = {
        f"{arm}/solved": sum(row["at_50"] is not None for row in rows) for arm, rows in best.items()
    }
    return "", numbers


_VERDICTS: dict[str, Callable[..., _Verdict]] = {
    "depth": _depth,
    "schemes": _schemes,
    "draws": _draws,
}
