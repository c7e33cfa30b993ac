"""Speed-ups over AdamW by width, each optimizer at its best cell; the lines of the protocol."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports.intervals import Estimate

_FASTER, _MEDIAN = 1.15, 1.4  # speed-ups
_SWAPPED = 0.2  # of the pairs
_INFLATED = 1.5
_CLAIMED = ("muon", "soap", "lion", "ademamix", "schedule_free", "lamb")
_WIDTHS = (32, 64, 128)
_DRAWS = 1_000  # of the bootstrap

# Of an arm (optimizer, steps, tuned): losses of fresh seeds, at half of the steps and at the end;
# their means; a number that is made of these.
_Arm = tuple[str, int, str]
_Losses = Mapping[_Arm, np.ndarray]
_Means = Mapping[_Arm, np.ndarray]
_Number = Callable[[_Means], float]
_HALF, _END = 0, 1


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of a width and what the lines say of it; of all three, once they are there."""
    rows = results.rows(runs)
    width = rows[0]["width"]
    results.write_csv(out / f"d{width}.csv", rows)
    steps = sorted({row["steps"] for row in rows if row["optimizer"] != "adamw"})[0]
    arms = results.group(rows, "optimizer", "steps", "tuned")
    fresh = {key: [row for row in arm if row["kind"] == "fresh"] for key, arm in arms.items()}
    losses = {
        key: np.array([[row["half"], row["loss"]] for row in arm], np.float64)
        for key, arm in fresh.items()
    }
    names = [name for name, at, tuned in arms if at == steps and tuned == "yes"]
    ups = {name: bootstrap(_speed_up(name, steps), losses) for name in names}
    lines = []
    for key, arm in arms.items():
        name, at, tuned = key
        lines.append(
            {
                "optimizer": name,
                "tuned": tuned,
                "steps": at,
                "rate": f"{fresh[key][0]['learning_rate']:.2g}" + ", at the edge" * _at_edge(arm),
                "decay": f"{fresh[key][0]['weight_decay']:.2g}",
                "half": results.interval(row["half"] for row in fresh[key]) or "diverged",
                "loss": results.interval(row["loss"] for row in fresh[key]) or "diverged",
                "speed-up": _text(ups[name]) if at == steps and tuned == "yes" else "",
            }
        )
    # The best is told by the seed of the search, and its size by the others.
    others = [name for name in names if name != "adamw"]
    best = min(others, key=lambda name: _least(arms[name, steps, "yes"]))
    text, numbers = _lines(losses, ups, best, steps)
    numbers |= {f"speed_up/{name}": up.value for name, up in ups.items()}
    error = math.nan if _is_end(ups[best], losses, steps) else ups[best].error
    numbers |= {"best": ups[best].value, "best/error": error}
    results.write_summary(out, {f"d{width}/{name}": value for name, value in numbers.items()})
    figure = figures.lines(
        [row for arm in fresh.values() for row in arm if row["tuned"] == "yes"],
        x="steps",
        y="loss",
        by="optimizer",
        xlabel="steps",
        ylabel="validation loss (nats a byte)",
        xscale="log",
    )
    title = f"Loss of each tuned optimizer, and AdamW's by steps: d_model {width}"
    texts = [results.table(lines), text, _over_widths(results.read_json(out / "summary.json"))]
    return "\n\n".join([*texts, figures.save(figure, out, f"d{width}", title)])


def _least(rows: Sequence[Row]) -> float:
    searched = [row["loss"] for row in rows if row["kind"] == "search"]
    return min((loss for loss in searched if loss is not None), default=math.inf)


def _at_edge(rows: Sequence[Row]) -> bool:
    members = [
        row
        for row in rows
        if row["kind"] == "fresh" or row["weight_decay"] == rows[0]["weight_decay"]
    ]
    return len({row["learning_rate"] for row in members}) > 1 and rates.at_edge(members)


def bootstrap(number: _Number, losses: _Losses) -> Estimate:
    """The number of the means over seeds; its error is its deviation where seeds are drawn anew.

    NaN as error where an arm has a single seed.
    """
    value = number({key: arm.mean(axis=0) for key, arm in losses.items()})
    seeds = min(len(arm) for arm in losses.values())
    if seeds < 2:
        return Estimate(value, math.nan, 0)
    rng = np.random.default_rng(0)
    draws = [
        number({key: rng.choice(arm, len(arm)).mean(axis=0) for key, arm in losses.items()})
        for _ in range(_DRAWS)
    ]
    # A mean of n values that are drawn anew has (n - 1) / n of the variance of a mean of n seeds.
    return Estimate(value, float(np.std(draws)) * math.sqrt(seeds / (seeds - 1)), math.inf)


def steps_to(loss: float, curve: Mapping[int, float]) -> float:
    """The steps that reach a loss, by lines between those of the curve, both on logarithms.

    Beyond the curve it is its end, so a bound; NaN where there is no curve.
    """
    if not curve:
        return math.nan
    steps = sorted(curve)
    # Rising from the last to the first, as `interp` wants it.
    x = np.log([curve[each] for each in steps[::-1]])
    return float(np.exp(np.interp(math.log(loss), np.maximum.accumulate(x), np.log(steps[::-1]))))


def _curve(means: _Means, tuned: str) -> dict[int, float]:
    """The losses of AdamW by steps, of those that are known."""
    return {
        steps: float(loss[_END])
        for (name, steps, how), loss in means.items()
        if (name, how) == ("adamw", tuned) and math.isfinite(loss[_END])
    }


def _speed_up(name: str, steps: int) -> _Number:
    """AdamW's steps to the optimizer's loss, over the optimizer's."""

    def number(means: _Means) -> float:
        loss = float(means[name, steps, "yes"][_END])
        return steps_to(loss, _curve(means, "yes")) / steps if math.isfinite(loss) else math.nan

    return number


def _swapped(at_half: Mapping[str, float], at_end: Mapping[str, float]) -> float:
    """The share of pairs whose order at half of the steps is not that at the end; of those that
    have both losses."""
    names = [
        name for name in at_end if math.isfinite(at_half[name]) and math.isfinite(at_end[name])
    ]
    pairs = list(combinations(names, 2))
    if not pairs:
        return math.nan
    return float(
        np.mean([(at_half[a] - at_half[b]) * (at_end[a] - at_end[b]) < 0 for a, b in pairs])
    )


def _lines(
    losses: _Losses, ups: Mapping[str, Estimate], best: str, steps: int
) -> tuple[str, dict[str, float]]:
    claimed = [name for name in _CLAIMED if name in ups]

    def swaps(means: _Means, without: str = "") -> float:
        halves, ends = (
            {name: float(means[name, steps, "yes"][when]) for name in ups if name != without}
            for when in (_HALF, _END)
        )
        return _swapped(halves, ends)

    def inflation(means: _Means) -> float:
        """Untuned AdamW's steps to tuned AdamW's loss, over those of the latter."""
        return steps_to(float(means["adamw", steps, "yes"][_END]), _curve(means, "no")) / steps

    def median(means: _Means) -> float:
        return float(np.median([_speed_up(name, steps)(means) for name in claimed]))

    swap, inflated, middle = (bootstrap(x, losses) for x in (swaps, inflation, median))
    # Whose rate does not decay
    decaying = bootstrap(functools.partial(swaps, without="schedule_free"), losses)
    complete = len(claimed) == len(_CLAIMED) and math.isfinite(middle.value)
    faster = _least_of(ups[best], _FASTER)
    if faster != "held" and _is_end(ups[best], losses, steps):
        faster = "undecided"
    slower = _least_of(inflated, _INFLATED)
    if slower != "held" and _is_end(inflated, losses, steps, "no"):
        slower = "undecided"
    text = (
        f"*The best optimizer is faster*: **{faster}**; {best}, "
        f"{_text(ups[best])} times.\n\n"
        f"*Those that are said to be faster are so by less than 1.4 times in the median*: "
        f"**{results.at_most(middle, _MEDIAN) if complete else 'undecided'}**; "
        f"{_text(middle)} times, of {len(claimed)}.\n\n"
        f"*Ranks swap while the rate decays*: **{_least_of(swap, _SWAPPED)}**; {_text(swap)} of "
        f"the pairs, {_text(decaying)} without schedule-free's.\n\n"
        f"*AdamW that is not tuned makes others look faster*: "
        f"**{slower}**; it takes {_text(inflated)} times the steps to "
        f"tuned AdamW's loss."
    )
    return text, {"median": middle.value, "swapped": swap.value, "inflated": inflated.value}


def _is_end(estimate: Estimate, losses: _Losses, steps: int, tuned: str = "yes") -> bool:
    """Whether a ratio of steps is where AdamW's curve ends, and so a bound."""
    most = max(at for name, at, how in losses if (name, how) == ("adamw", tuned))
    return estimate.value > 0.999 * most / steps


def _least_of(estimate: Estimate, line: float) -> str:
    """As of `results.at_most`, of what is at least the line."""
    return results.at_most(estimate._replace(value=-estimate.value), -line)


def _text(estimate: Estimate) -> str:
    return f"{estimate.value:.2f} (error {estimate.error:.2f})"


def _over_widths(summary: Mapping[str, float | None]) -> str:
    """The slope of the best speed-up on log2 of the width, with errors of each."""
    columns = [[summary.get(f"d{width}/{x}") for width in _WIDTHS] for x in ("best", "best/error")]
    values, errors = (np.array(column, np.float64) for column in columns)
    line = "*The best speed-up falls with width*: **"
    if not (np.isfinite(values).all() and np.isfinite(errors).all()):
        return f"{line}undecided**; of a width it is not there, or only bounded."
    x = np.log2(_WIDTHS)
    # Widths are equally spaced, so the slope is that between the outer two.
    error = math.hypot(errors[0], errors[-1]) / (x[-1] - x[0])
    slope = Estimate(float((values[-1] - values[0]) / (x[-1] - x[0])), error, math.inf)
    verdict = (
        "undecided" if not slope.error else "held" if slope.value < -2 * error else "contradicted"
    )
    return f"{line}{verdict}**; {slope.value:+.3f} (error {error:.3f}) an octave."
