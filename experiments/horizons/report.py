"""Losses by horizon and arm, each at its best rate, and what the lines of the protocol say."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports import intervals

_COUNTS = 0.012  # nats, that resolve with three seeds
_BRANCH = "line, 20 %"


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of a sweep; with the trunks' and the schedules' rows there, the verdicts."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    results.write_csv(out / f"{part}.csv", rows)
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    horizons = sorted({row["horizon"] for row in rows})
    lines = [
        {"arm": arm}
        | {f"{horizon} steps": _cell(_best(rows, arm, horizon)) for horizon in horizons}
        for arm in arms
    ]
    numbers = {
        f"{part}/{arm}/{horizon}": float(np.mean(_losses(_best(rows, arm, horizon))))
        for arm in arms
        for horizon in horizons
    }
    results.write_summary(out, numbers)
    figure = figures.lines(
        [row for arm in arms if "mean" not in arm and "moving" not in arm
         for horizon in horizons for row in _best(rows, arm, horizon)],
        x="horizon",
        y="loss",
        by="arm",
        xlabel="steps",
        ylabel="validation loss (nats a byte)",
        xscale="log",
    )  # fmt: skip
    for ax in figure.axes:
        ax.set_xticks(horizons, map(str, horizons))
        ax.minorticks_off()
    title = f"Loss at each horizon, each arm at its best rate: {part}"
    text = {"trunk": _trunk_lines, "schedule": _schedule_lines}.get(part, lambda *_: "")(rows, out)
    texts = [results.table(lines), text, figures.save(figure, out, part, title)]
    return "\n\n".join(filter(None, texts))


def _rows(rows: Iterable[Row], arm: str, horizon: int) -> list[Row]:
    return [row for row in rows if (row["arm"], row["horizon"]) == (arm, horizon)]


def _best(rows: Iterable[Row], arm: str, horizon: int) -> list[Row]:
    """The seeds at the rate with the least mean loss."""
    by_rate = results.group(_rows(rows, arm, horizon), "rate")
    return min(by_rate.values(), key=lambda cell: float(np.mean(_losses(cell))))


def _losses(rows: Iterable[Row]) -> list[float]:
    return [math.inf if row["loss"] is None else row["loss"] for row in rows]


def _cell(rows: Sequence[Row]) -> str:
    rate = f" ({rows[0]['rate']:g})"
    return (results.interval(row["loss"] for row in rows) or "diverged") + rate


def _less(a: Sequence[Row], b: Sequence[Row]) -> intervals.Estimate:
    return results.difference(_losses(a), _losses(b))


def _trunk_lines(rows: Sequence[Row], out: Path) -> str:
    horizons = sorted({row["horizon"] for row in rows})
    gains = [
        {**trunk, "gain": trunk["loss"] - _same(rows, _BRANCH, trunk)["loss"]}
        for horizon in horizons
        for trunk in _rows(rows, "trunk", horizon)
    ]
    slope = results.common_slope(
        (np.log2([row["rate"] for row in members]), [row["gain"] for row in members])
        for members in results.group(gains, "horizon").values()
    )
    pairs = [
        _same(rows, "1-sqrt, 20 %", row)["loss"] - row["loss"]
        for horizon in horizons
        for row in _best(rows, _BRANCH, horizon)
    ]
    sharper = intervals.mean(pairs)
    beyond = abs(sharper.value) > 2 * sharper.error
    above, moved = [], []
    for horizon in horizons:
        branch = _best(rows, _BRANCH, horizon)
        averages, decayed = (
            [
                _best(rows, arm, horizon)
                for arm in dict.fromkeys(row["arm"] for row in rows)
                if arm.startswith(f"{prefix}, m")
            ]
            for prefix in ("trunk", _BRANCH)
        )
        least = min(averages, key=lambda cell: float(np.mean(_losses(cell))))
        above.append(_less(least, branch).value)
        moved.append(min(_less(cell, branch).value for cell in decayed))
    said = {True: "held", False: "contradicted"}
    results.write_summary(
        out,
        {
            "slope": slope.value,
            "slope/half_width": slope.half_width,
            "1-sqrt/difference": sharper.value,
            **{f"average/{h}": value for h, value in zip(horizons, above, strict=True)},
        },
    )
    steps = ("held" if slope.value > 0 else "contradicted") if slope.counts else "undecided"
    shape = ("held" if sharper.value < 0 else "contradicted") if beyond else "undecided"
    return "\n\n".join(
        [
            f"*The higher the rate, the more a decay gains*: **{steps}**; {slope:+} nats an "
            "octave.",
            f"*1 - sqrt is a better shape than a line*: **{shape}**; {sharper:+} nats in "
            f"{len(pairs)} pairs.",
            f"*An average of the trunk does not make up for a decay*: "
            f"**{said[min(above) > _COUNTS]}**; the best is "
            f"{', '.join(f'{value:+.3f}' for value in above)} nats behind the branch.",
            f"*An average on the branch adds nothing*: **{said[max(map(abs, moved)) < 0.003]}**; "
            f"{', '.join(f'{value:+.4f}' for value in moved)} nats.",
        ]
    )


def _same(rows: Iterable[Row], arm: str, row: Row) -> Row:
    key = (row["horizon"], row["rate"], row["seed"])
    return next(
        each
        for each in rows
        if each["arm"] == arm and (each["horizon"], each["rate"], each["seed"]) == key
    )


def _schedule_lines(rows: Sequence[Row], out: Path) -> str:
    horizons = sorted({row["horizon"] for row in rows})
    trunk = results.read_json(out / "summary.json")
    lines, differences = [], {}
    if f"trunk/{_BRANCH}/{horizons[0]}" in trunk:
        behind = [
            trunk[f"trunk/{_BRANCH}/{horizon}"]
            - min(
                float(np.mean(_losses(_best(rows, f"cosine to {floor}", horizon))))
                for floor in ("0", "10 %")
            )
            for horizon in horizons
        ]
        verdict = "held" if max(behind) <= _COUNTS else "contradicted"
        lines.append(
            f"*A trunk with branches is as good as a cosine for each horizon*: **{verdict}**; "
            f"{', '.join(f'{value:+.3f}' for value in behind)} nats behind."
        )
        differences |= {f"behind/{h}": v for h, v in zip(horizons, behind, strict=True)}
    floors = {
        horizon: _less(_best(rows, "line to 10 %", horizon), _best(rows, "line to 0", horizon))
        for horizon in horizons
    }
    first, last = floors[horizons[0]], floors[horizons[-1]]
    grows = last.value - first.value > 2 * math.hypot(last.error, first.error)
    held = last.value > _COUNTS and grows
    verdict = "held" if held else "contradicted" if last.value < 0 else "undecided"
    lines.append(
        f"*A line to 0 beats one to a tenth, the more the longer*: **{verdict}**; "
        + ", ".join(f"{floors[horizon]:+} at {horizon}" for horizon in horizons)
        + "."
    )
    optima = {
        arm: [_optimum(rows, arm, horizon) for horizon in horizons]
        for arm in ("line to 0", "line to 10 %")
    }
    listing = "; ".join(
        f"{arm}: {', '.join(f'{2**x:.2g}' for x in logs)}" for arm, logs in optima.items()
    )
    lines.append(f"Best rates, of a parabola through the mean losses, by horizon: {listing}.")
    results.write_summary(
        out, differences | {f"floor/{h}": each.value for h, each in floors.items()}
    )
    return "\n\n".join(lines)


def _optimum(rows: Sequence[Row], arm: str, horizon: int) -> float:
    groups: Mapping = results.group(_rows(rows, arm, horizon), "rate")
    means = {rate: float(np.mean(_losses(cell))) for (rate,), cell in groups.items()}
    return rates.optimum(means).log2_rate
