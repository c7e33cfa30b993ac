"""Losses of schemes at depth, what their layers do, and what the lines of the protocol say."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row
from transformer_jax.tools.reports.intervals import Estimate

COUNTS = 0.012  # nats
_FLATTER, _MORE = 0.3, 2.0  # LN scaling's slope and drop losses against Pre-LN's
_NEAR = 0.2  # nats around Pre-LN, in which arms share a deviation


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of a sweep, its lines and figures; of both depths, once these are there."""
    rows = results.rows(runs)
    part = rows[0]["part"]
    for row in rows:
        row["arm"] = f"{row['arm']}, {row['draw']}" if part == "draws" else row["arm"]
    trainings = [row for row in rows if row["kind"] != "layer"]
    layer_rows = [row for row in rows if row["kind"] == "layer"]
    results.write_csv(out / f"{part}.csv", trainings)
    results.write_csv(out / f"{part}_layers.csv", layer_rows)
    losses = {
        arm: [math.nan if row["loss"] is None else row["loss"] for row in members]
        for (arm,), members in results.group(
            [row for row in trainings if row["kind"] == "fresh"], "arm"
        ).items()
    }
    by_arm = {arm: members for (arm,), members in results.group(layer_rows, "arm").items()}
    base = "pre_ln, normal" if part == "draws" else "pre_ln"
    table = [
        _line(arm, [row for row in trainings if row["arm"] == arm], losses, by_arm, base)
        for arm in losses
    ]
    text, numbers = LINES[part](losses, by_arm)
    numbers |= {arm: float(np.mean(cell)) for arm, cell in losses.items()}
    results.write_summary(out, {f"{part}/{name}": value for name, value in numbers.items()})
    texts = [results.table(table), text]
    if part != "draws":
        texts.append(over_depths(results.read_json(out / "summary.json")))
    for name, label in (("stream", "variance of the stream"), ("drop", "added loss (nats a byte)")):
        what = {
            "stream": "Variance of the residual stream after each layer of trained models",
            "drop": "Loss that leaving out each layer of trained models adds",
        }[name]
        figure = figures.lines(
            [row for row in layer_rows if row[name] is not None],
            x="layer",
            y=name,
            by="arm",
            xlabel="layer",
            ylabel=label,
            yscale="log" if name == "stream" else "linear",
        )
        texts.append(figures.save(figure, out, f"{part}_{name}", f"{what}: {part}"))
    return "\n\n".join(filter(None, texts))


_Losses = Mapping[str, Sequence[float]]
_Layers = Mapping[str, Sequence[Row]]
_Said = tuple[str, dict[str, float]]


def gain(losses: _Losses, arm: str, twin: str) -> Estimate:
    """What the arm's loss is below its twin's, by the deviation of arms near to the twin; NaN
    where one of the two is missing or diverged."""
    if arm not in losses or twin not in losses:
        return Estimate(math.nan, math.nan, math.nan)
    center = np.mean(losses[twin])
    near = [cell for cell in losses.values() if abs(np.mean(cell) - center) < _NEAR]
    return results.difference(losses[twin], losses[arm], results.pooled_deviation(near))


def slope(rows: Sequence[Row]) -> float:
    """Of the log of the stream's variance on that of the layer's number, the mean over seeds."""
    slopes = [
        results.log_log_slope([row["layer"] for row in cell], [row["stream"] for row in cell])
        for cell in results.group(rows, "seed").values()
    ]
    return float(np.mean(slopes))


def last_third(rows: Sequence[Row]) -> float:
    """The mean loss that leaving out a layer of the last third adds."""
    layers = max(row["layer"] for row in rows)
    return float(np.mean([row["drop"] for row in rows if row["layer"] > layers - layers // 3]))


def _shallow(losses: _Losses, by_arm: _Layers) -> _Said:
    return _stand_ins(losses)


def _stand_ins(losses: _Losses) -> _Said:
    """That DyT and Derf are never ahead of LayerNorm."""
    lines, numbers = [], {}
    for name, label in (("dyt", "DyT"), ("derf", "Derf")):
        ahead = gain(losses, name, "pre_ln")
        verdict = {"held": "contradicted", "contradicted": "held"}.get(
            results.above(ahead, COUNTS), "undecided"
        )
        lines.append(
            f"*{label} is not ahead of its norm twin*: **{verdict}**; {_text(ahead)} nats below."
        )
        numbers |= {f"{name}/gain": ahead.value, f"{name}/error": ahead.error}
    ahead = gain(losses, "x0", "pre_ln")
    numbers |= {"x0/gain": ahead.value, "x0/error": ahead.error}
    return "\n\n".join(lines), numbers


def _deep(losses: _Losses, by_arm: _Layers) -> _Said:
    text, numbers = _stand_ins(losses)
    ahead = gain(losses, "ln_scaling", "pre_ln")
    numbers |= {"ln_scaling/gain": ahead.value, "ln_scaling/error": ahead.error}
    lines = [
        f"*LN scaling is better at 24 layers*: **{results.above(ahead, COUNTS)}**; "
        f"{_text(ahead)} nats below Pre-LN."
    ]
    if {"pre_ln", "ln_scaling"} <= by_arm.keys():
        flatter = slope(by_arm["pre_ln"]) - slope(by_arm["ln_scaling"])
        drop, others = (last_third(by_arm[arm]) for arm in ("ln_scaling", "pre_ln"))
        words = {True: "held", False: "contradicted"}
        matters = drop > 0 and drop >= _MORE * others
        lines += [
            f"*Its stream grows more slowly*: **{words[flatter >= _FLATTER]}**; the slope of log "
            f"variance on log layer is {flatter:.2f} lower.",
            f"*Its last third matters more*: **{words[matters]}**; leaving out a layer of it adds "
            f"{drop:.4f} nats, and {others:.4f} to Pre-LN's.",
        ]
        numbers |= {"ln_scaling/slope": flatter}
        numbers |= {"ln_scaling/last_third": drop, "pre_ln/last_third": others}
    return "\n\n".join([*lines, text]), numbers


def _draws(losses: _Losses, by_arm: _Layers) -> _Said:
    gains = {
        draw: gain(losses, f"ln_scaling, {draw}", f"pre_ln, {draw}") for draw in ("normal", "gpt2")
    }
    normal, scaled = gains["normal"], gains["gpt2"]
    less = Estimate(
        normal.value - scaled.value, math.hypot(normal.error, scaled.error), normal.freedom
    )
    text = (
        f"*Scaled draws leave LN scaling less to gain*: **{results.above(less)}**; it gains "
        f"{_text(normal)} nats with `normal` and {_text(scaled)} with `gpt2`."
    )
    return text, {f"gain/{draw}": each.value for draw, each in gains.items()} | {
        "less": less.value,
        "less/error": less.error,
    }


def over_depths(numbers: Mapping[str, float | None]) -> str:
    """The line on x0, of the gains at both depths in summary.json."""
    gains = []
    for part in ("shallow", "deep"):
        value, error = (numbers.get(f"{part}/x0/{name}") for name in ("gain", "error"))
        if value is None or error is None:
            return "*x0 helps at both depths, less at 24 layers*: **undecided**; not run at both."
        gains.append((value, error))
    (shallow, e12), (deep, e24) = gains
    held = shallow > 2 * e12 and deep > 2 * e24 and deep < shallow
    against = shallow < -2 * e12 or deep < -2 * e24 or deep - shallow > 2 * math.hypot(e12, e24)
    verdict = "held" if held else "contradicted" if against else "undecided"
    return (
        f"*x0 helps at both depths, less at 24 layers*: **{verdict}**; {shallow:+.3f} nats below "
        f"Pre-LN at 12 and {deep:+.3f} at 24."
    )


LINES = {"shallow": _shallow, "deep": _deep, "draws": _draws}


def _text(estimate: Estimate) -> str:
    return f"{estimate:+}" if math.isfinite(estimate.value) else "?"


def _line(
    arm: str, rows: Sequence[Row], losses: _Losses, by_arm: _Layers, base: str
) -> dict[str, object]:
    fresh = [row for row in rows if row["kind"] == "fresh"]
    line: dict[str, object] = {
        "arm": arm,
        "rate": rates.chosen_rate(rows),
        "loss": results.interval(row["loss"] for row in fresh) or "diverged",
        "below Pre-LN": "" if arm == base else _text(gain(losses, arm, base)),
    }
    layers = by_arm.get(arm, [])
    if any(row[name] is None for row in layers for name in ("stream", "drop")):
        layers = []
    last = [row for row in layers if row["layer"] == max(each["layer"] for each in layers)]
    line["slope of the stream"] = slope(layers) if layers else None
    line["drop, last third"] = last_third(layers) if layers else None
    for name in ("branch", "similarity", "angle"):
        line[f"{name}, last layer"] = float(np.mean([row[name] for row in last])) if last else None
    return line
