"""How gradients at the end compare with those before, by decay; slopes over the rate; angles."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from experiments.late_gradients.sweep import EQUILIBRIUM_DECAY, RATE, STEPS

_KERNELS = ("self_attention/query", "self_attention/key", "feed_forward/up", "feed_forward/down")
_GROWS, _STAYS = 1.5, 1.15
_SLOPE = 0.15


def report(runs: Sequence[Finished], out: Path) -> str:
    """The table of arms, the lines of the protocol, and gradients over training."""
    if "beta1" in runs[0].labels:
        return _equilibrium(runs, out)
    rows = [{**run.labels, **_measured(run)} for run in runs]
    results.write_csv(out / "line.csv", rows)
    arms = results.group(rows, "scheme", "schedule", "decay", "power")
    table = results.table([_line(key, members) for key, members in arms.items()])
    text, numbers = _lines(rows)
    results.write_summary(out, numbers)
    curves = [
        {"step": step, "norm": norm, "arm": _arm(run.labels)}
        for run in runs
        if run.labels["scheme"] == "pre_ln" and run.labels["decay"] in (0.1, 2.0)
        for step, norm in zip(*run.series("train/gradient_norm"), strict=True)
        if step % 100 == 0
    ]
    figure = figures.lines(
        curves, x="step", y="norm", by="arm", xlabel="step", ylabel="gradient norm", yscale="log"
    )
    title = "Norm of the gradient over training, Pre-LN: weight decays of 0.1 and 2"
    return "\n\n".join([table, text, figures.save(figure, out, "gradients", title)])


def _arm(labels: Mapping[str, Any]) -> str:
    schedule = "" if labels["schedule"] == "linear" else ", constant rate"
    return f"decay {labels['decay']:g}, power {labels['power']}{schedule}"


def _measured(run: Finished) -> Row:
    """growth: the gradient's norm in the last twentieth over that from 0.4 to 0.6 of the steps.

    slope: of the log of |g| / |w| of a kernel on that of the rate, from 0.2 of the steps to its
      last tenth of the peak; the mean over kernels and layers.
    """
    steps, norms = (np.array(x, np.float64) for x in run.series("train/gradient_norm"))
    last = run.run.resolved.train.steps
    middle = norms[(steps > 0.4 * last) & (steps <= 0.6 * last)]
    growth = np.mean(norms[steps > 0.95 * last]) / np.mean(middle)
    at, weights, gradients = _kernels(run)
    logged, rates = (np.array(x, np.float64) for x in run.series("train/learning_rate"))
    rate = np.interp(at, logged, rates)
    mask = (at > 0.2 * last) & (rate > 0.1 * rate.max())
    slope = math.nan
    if np.ptp(rate[mask]) > 0:
        ratios = np.log(gradients[mask] / weights[mask])
        slope = float(np.mean(np.polyfit(np.log(rate[mask]), ratios, 1)[0]))
    return {"growth": float(growth), "slope": slope, "loss": run.results.get("validation/loss")}


def _kernels(run: Finished, other: str = "gradient_norm") -> tuple[np.ndarray, ...]:
    """Steps, and norms by step and by kernel and layer: of parameters, and of another quantity."""
    arrays = []
    for probe in ("weight_norm", other):
        values = [run.series(f"{probe}/decoder/{kernel}")[1] for kernel in _KERNELS]
        arrays.append(np.concatenate([np.array(norms, np.float64) for norms in values], axis=1))
    return np.array(run.series(f"weight_norm/decoder/{_KERNELS[0]}")[0]), *arrays


def _line(key: tuple, rows: Sequence[Row]) -> Row:
    scheme, schedule, decay, power = key
    return {
        "scheme": scheme,
        "rate": schedule,
        "decay": f"{decay:g}",
        "power": power,
        "ηλT": f"{_time(schedule, decay, power):.1f}",
        "growth": results.interval(row["growth"] for row in rows),
        "slope": results.interval(row["slope"] for row in rows) if schedule == "linear" else "",
        "loss": results.interval(row["loss"] for row in rows),
    }


def _time(schedule: str, decay: float, power: int) -> float:
    """The sum of learning rate times decay over the steps, in which norms come to rest."""
    share = 1.0 if schedule == "constant" else 1 / (power + 1)
    return RATE * decay * STEPS * share


def _lines(rows: Sequence[Row]) -> tuple[str, dict[str, float]]:
    def growths(scheme: str, power: int, least: float, schedule: str = "linear") -> list[float]:
        return [
            row["growth"]
            for row in rows
            if (row["scheme"], row["schedule"], row["power"]) == (scheme, schedule, power)
            and row["decay"] >= least
        ]

    grown = growths("pre_ln", 1, 1.0)
    flat = growths("pre_ln", 2, 1.0)
    free = [
        max(growths("t_fixup", 1, 0.0)),
        max(growths("pre_ln", 1, 0.0, "constant")),
    ]
    grows = min(grown) >= _GROWS
    corrected = max(flat, default=math.nan) <= _STAYS
    spared = max(free) <= _STAYS
    verdict = "held" if grows else "contradicted" if max(grown) < _STAYS else "undecided"
    slopes = {
        power: [
            row["slope"]
            for row in rows
            if (row["scheme"], row["schedule"], row["power"]) == ("pre_ln", "linear", power)
            and row["decay"] >= 1.0
        ]
        for power in (1, 2)
    }
    means = {power: float(np.mean(group)) if group else math.nan for power, group in slopes.items()}
    sloped = abs(means[1] + 0.5) <= _SLOPE and abs(means[2]) <= _SLOPE
    best = {
        power: min(
            np.mean([row["loss"] for row in cell])
            for (decay,), cell in results.group(
                [
                    row
                    for row in rows
                    if (row["scheme"], row["schedule"], row["power"]) == ("pre_ln", "linear", power)
                    and row["decay"] > 0
                ],
                "decay",
            ).items()
        )
        for power in (1, 2)
        if slopes[power]
    }
    difference = best[2] - best[1] if len(best) == 2 else math.nan
    said = {True: "held", False: "contradicted"}
    law = said[sloped] if np.isfinite([*means.values()]).all() else "undecided"
    text = "\n\n".join(
        [
            f"*Gradients grow late where decay is strong*: **{verdict}**; from "
            f"{min(grown):.2f} to {max(grown):.2f} times, Pre-LN, decays of 1 and 2.",
            f"*A decay by the square of the schedule stops it*: **{said[corrected]}**; at most "
            f"{max(flat, default=math.nan):.2f} times.",
            f"*Without norms, or at a constant rate, nothing grows*: **{said[spared]}**; at most "
            f"{free[0]:.2f} times with T-Fixup and power 1, {free[1]:.2f} at a constant rate.",
            f"*|g| / |w| goes with the rate to the power -1/2, and is flat with the correction*: "
            f"**{law}**; slopes {means[1]:+.2f} and {means[2]:+.2f}.",
            f"*The correction costs nothing*: "
            f"**{said[bool(difference <= 0.006)]}**; at each one's best decay its loss is "
            f"{difference:+.4f} nats.",
        ]
    )
    numbers = {
        "growth/least": min(grown),
        "growth/corrected": max(flat, default=math.nan),
        "growth/without_norms": free[0],
        "growth/constant_rate": free[1],
        "slope/1": means[1],
        "slope/2": means[2],
        "loss/difference": difference,
    }
    return text, numbers


def _equilibrium(runs: Sequence[Finished], out: Path) -> str:
    """The angle of a step, over the formula, once two time constants have passed."""
    rows, curves = [], []
    for run in runs:
        beta1 = run.labels["beta1"]
        expected = math.sqrt(2 * RATE * EQUILIBRIUM_DECAY * (1 - beta1) / (1 + beta1))
        at, weights, updates = _kernels(run, "update_norm")
        angles = updates / weights / expected
        rest = at >= 2 / (2 * RATE * EQUILIBRIUM_DECAY)
        layers = angles.shape[1] // len(_KERNELS)
        curves += [
            {"step": int(step), "ratio": float(np.mean(values)), "beta1": f"beta1 {beta1:g}"}
            for step, values in zip(at, angles, strict=True)
        ]
        for number, kernel in enumerate(_KERNELS):
            ratios = angles[:, number * layers : (number + 1) * layers]
            rows.append({**run.labels, "kernel": kernel, "ratio": float(np.mean(ratios[rest]))})
    results.write_csv(out / "equilibrium.csv", rows)
    numbers = {
        f"equilibrium/{beta1:g}/{kernel}": float(np.mean([row["ratio"] for row in members]))
        for (beta1, kernel), members in results.group(rows, "beta1", "kernel").items()
    }
    results.write_summary(out, numbers)
    held = all(abs(value - 1) <= 0.15 for value in numbers.values())
    table = results.table(
        [
            {
                "beta1": f"{beta1:g}",
                "kernel": kernel,
                "angle over the formula": results.interval(row["ratio"] for row in members),
            }
            for (beta1, kernel), members in results.group(rows, "beta1", "kernel").items()
        ]
    )
    figure = figures.lines(
        curves, x="step", y="ratio", by="beta1", xlabel="step", ylabel="angle over the formula"
    )
    title = "Angle of a step over that of the equilibrium, mean of kernels and layers"
    known = np.isfinite([*numbers.values()]).all()  # not of trainings that end before
    verdict = ("held" if held else "contradicted") if known else "undecided"
    line = f"*Steps turn kernels by the formula's angle*: **{verdict}**."
    return "\n\n".join([table, line, figures.save(figure, out, "equilibrium", title)])
