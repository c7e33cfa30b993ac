"""Sensitivity by size and with QK-norm, what grows, and the prediction for a larger model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Row
from experiments.learning_rate_sensitivity import prediction, summaries
from experiments.learning_rate_sensitivity.sweep import BLIND

_LOGIT = "warm_up/largest_logit"
_NEVER = "a seed never trains"
_MOMENTS = {"warm_up": "in warm-up", "end": "at the end"}


def text(rows: Sequence[Row], out: Path) -> str:
    """Writes the figures and the numbers; what the README says of the ladder."""
    without = [row for row in rows if not row["qk_norm"]]
    cells = sensitivities(rows)
    results.write_summary(out, _numbers(cells))
    return "\n\n".join(
        [
            "### Sensitivity",
            "S, and as a share of what the best learning rate gains over the loss before training: "
            "means over seeds. First failing rates are those of the seeds.",
            results.table([_line(cell) for cell in cells]),
            figures.save(
                figures.by_learning_rate(
                    [{**row, "QK-norm": summaries.ARMS[row["qk_norm"]]} for row in rows],
                    by="model",
                    panel="QK-norm",
                ),
                out,
                "losses",
                "Validation loss over the learning rate by model, without and with QK-norm; "
                "trainings that diverged stand at the loss before training",
            ),
            "S without QK-norm less that with it, and without it the steps of the grid by which "
            "the first failing rate lies above that of the smallest model; with 95 % intervals by "
            "t, of the deviation pooled over all models.",
            _differences(cells, out),
            "### What grows",
            "Without QK-norm, in the first block: octaves by which the product of the norms of "
            "queries and keys grows with each octave of the learning rate, and by which their "
            "alignment does; means over seeds, and the difference with its 95 % interval by t.",
            _growth(without, out),
            figures.save(
                _gradients([row for row in rows if row["qk_norm"]]),
                out,
                "gradients",
                "With QK-norm, at the end of training: root mean square of the gradients that Adam "
                "sees, and of its update before the learning rate, in the first feed-forward "
                "matrix; no point where a training diverged before its first look",
            ),
            "### Prediction",
            _prediction(without, out),
        ]
    )


def sensitivities(rows: Sequence[Row]) -> list[Row]:
    """A row for each model and arm, smallest first.

    least: the least mean loss of the grid, at its learning rate "at"; missing where at no rate all
      seeds trained.
    S, share, first, below: of each seed, as `_of_seed` has it.
    """
    lines = []
    cells = results.group(rows, "layers", "width", "qk_norm")
    for layers, width, qk_norm in sorted(cells, key=lambda cell: prediction.kernels(*cell[:2])):
        members = cells[layers, width, qk_norm]
        seeds = [_of_seed(seed) for seed in results.group(members, "seed").values()]
        cell = {
            "model": summaries.model(layers, width),
            "qk_norm": qk_norm,
            "finished": summaries.finished(members),
            "grid": sorted({row["learning_rate"] for row in members}),
            **{name: [seed[name] for seed in seeds] for name in seeds[0]},
        }
        if (best := rates.best_rate(members)) is not None:
            losses = [row["loss"] for row in members if row["learning_rate"] == best]
            cell |= {"least": float(np.mean(losses)), "at": best}
        lines.append(cell)
    return lines


def _of_seed(rows: Sequence[Row]) -> Row:
    """S and its share of what is gained, None where no rate trains and they would be 0 and 0 / 0;
    the first failing rate (infinite: none), and how many of the grid are below it."""
    losses, initial = rates.grid(rows), rows[0]["initial"]
    first = rates.boundary(rows)
    below = sum(rate < first for rate in losses)
    if not below:
        return {"S": None, "share": None, "first": first, "below": below}
    S = rates.sensitivity(losses, initial)
    return {
        "S": S,
        "share": S / (initial - min(summaries.known(losses.values()))),
        "first": first,
        "below": below,
    }


def slopes(rows: Sequence[Row], moment: str) -> tuple[float, float] | None:
    """Octaves by which |q| |k|, and their alignment, grow with each octave of the learning rate.

    Of one seed, by least squares; None where fewer than two trainings were seen at the moment,
    because the others had diverged, or their queries, keys or logits were 0.
    """
    names = [f"{moment}/{name}" for name in ("query_norm", "key_norm", "alignment")]
    trainings = [row for row in rows if all((row.get(name) or 0) > 0 for name in names)]
    if len(trainings) < 2:
        return None
    x = np.log2([row["learning_rate"] for row in trainings])
    query, key, alignment = (np.log2([row[name] for row in trainings]) for name in names)
    norms, alignment = (float(np.polyfit(x, y, 1)[0]) for y in (query + key, alignment))
    return norms, alignment


def _line(cell: Row) -> Row:
    best = cell.get("at")
    at_end = " (end of the grid)" * (best in (cell["grid"][0], cell["grid"][-1]))
    return {
        "model": cell["model"],
        "QK-norm": summaries.ARMS[cell["qk_norm"]],
        "finished": cell["finished"],
        "least loss": cell.get("least"),
        "best rate": "none" if best is None else f"{best:g}{at_end}",
        "S": summaries.mean_text(cell["S"]),
        "share": summaries.mean_text(cell["share"]),
        "first failing rates": ", ".join(
            summaries.rate(first) if below else "never trains"
            for first, below in sorted(zip(cell["first"], cell["below"], strict=True))
        ),
    }


def _numbers(cells: Sequence[Row]) -> dict[str, Any]:
    numbers = {}
    for cell in cells:
        name = f"{cell['model']}/{summaries.ARMS[cell['qk_norm']]}"
        numbers |= {
            f"S/{name}": summaries.mean(cell["S"]),
            f"share/{name}": summaries.mean(cell["share"]),
            f"first_failing/{name}": results.median(cell["first"]),
            f"least/{name}": cell.get("least"),
            f"best_rate/{name}": cell.get("at"),
        }
    return numbers


def _differences(cells: Sequence[Row], out: Path) -> str:
    deviations = {
        name: results.pooled_deviation(
            list(filter(None, (summaries.known(cell[name]) for cell in cells)))
        )
        for name in ("S", "below")
    }
    base, *_ = without = [cell for cell in cells if not cell["qk_norm"]]
    lines, numbers = [], {}
    for cell, other in zip(without, [cell for cell in cells if cell["qk_norm"]], strict=True):
        model = cell["model"]
        line: Row = {"model": model, "S": _NEVER, "first failing rate": _NEVER}
        if all(cell["below"] + other["below"]):
            difference = results.difference(cell["S"], other["S"], deviations["S"])
            line["S"] = f"{difference:+}"
            numbers |= summaries.difference(f"S_difference/{model}", difference)
        if cell is base:
            line["first failing rate"] = ""
        elif all(cell["below"] + base["below"]):
            difference = results.difference(cell["below"], base["below"], deviations["below"])
            beyond = " (of the end of the grid)" * (math.inf in cell["first"] + base["first"])
            line["first failing rate"] = f"{difference:+}{beyond}"
            numbers |= summaries.difference(f"first_failing_difference/{model}", difference)
        lines.append(line)
    results.write_summary(out, numbers)
    return results.table(lines)


def _growth(rows: Sequence[Row], out: Path) -> str:
    lines, numbers = [], {}
    for moment, (model, members) in itertools.product(_MOMENTS, _by_model(rows)):
        seeds = results.group(members, "seed").values()
        fitted = [pair for seed in seeds if (pair := slopes(seed, moment)) is not None]
        line: Row = {
            "": _MOMENTS[moment],
            "model": model,
            "seeds": f"{len(fitted)} of {len(seeds)}",
        }
        if fitted:
            norms, alignments = zip(*fitted, strict=True)
            difference = results.difference(norms, alignments)
            line |= {"norms": float(np.mean(norms)), "alignment": float(np.mean(alignments))}
            line["norms less alignment"] = f"{difference:+}"
            at = f"{moment}/{model}"
            numbers |= {f"slope_{name}/{at}": line[name] for name in ("norms", "alignment")}
            numbers |= summaries.difference(f"slope_difference/{at}", difference)
        lines.append(line)
    results.write_summary(out, numbers)
    return results.table(lines)


def _by_model(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(model, members) for (model,), members in results.group(rows, "model").items()]


def _gradients(rows: Sequence[Row]) -> Any:
    columns = {"gradient": "end/gradient_rms", "update": "end/update_rms"}
    return figures.lines(
        [
            {**row, "RMS_of": name, "rms": summaries.log10(row.get(column))}
            for name, column in columns.items()
            for row in rows
        ],
        x="learning_rate",
        y="rms",
        by="model",
        panel="RMS_of",
        xscale="log",
        xlabel="learning rate",
        ylabel="log10 of root mean square",
    )


def _prediction(rows: Sequence[Row], out: Path) -> str:
    limit = prediction.threshold(rows)
    logits = prediction.largest_logits(rows, *BLIND)
    first = prediction.first_above(logits, limit)
    numbers: dict[str, Any] = {f"prediction/logit/{at:g}": logits[at] for at in logits}
    numbers["prediction/threshold"] = limit
    numbers["prediction/first_failing"] = first
    numbers["prediction/rates"] = prediction.to_test(logits, first)
    results.write_summary(out, numbers)
    model = summaries.model(*BLIND)
    lines = []
    for (rate,), members in results.group(rows, "learning_rate").items():
        line: Row = {"learning rate": f"{rate:g}"}
        for (size,), seeds in results.group(members, "model").items():
            line[size] = summaries.mean_text([row.get(_LOGIT) for row in seeds])
        line[f"{model}, predicted"] = prediction.text(logits[rate])
        lines.append(line)
    level = (
        f"The smallest model that fails does so around {limit:.3g}."
        if math.isfinite(limit)
        else "No model fails: there is no threshold."
    )
    return "\n\n".join(
        [
            "Largest logit of the first block in warm-up, without QK-norm, and by a line in the "
            f"logs of logit and size. {level} So the first failing rate of {model} is predicted "
            f"to be: {summaries.rate(first)}.",
            results.table(lines),
            figures.save(
                _logits(rows, logits, limit),
                out,
                "logits",
                "Largest logit of the first block in warm-up over the size, by learning rate; the "
                "rings are predicted, and the dotted level is the threshold",
            ),
        ]
    )


def _logits(rows: Sequence[Row], predicted: Mapping[float, float | None], limit: float) -> Any:
    figure, (ax,) = figures.panels()
    for rate, last in predicted.items():
        looks = figures.style(f"{rate:g}", [f"{each:g}" for each in predicted])
        members = [row for row in rows if row["learning_rate"] == rate]
        points = [
            (
                prediction.kernels(*size),
                results.median(summaries.log10(row.get(_LOGIT)) for row in seeds),
            )
            for size, seeds in results.group(members, "layers", "width").items()
        ]
        points.append((prediction.kernels(*BLIND), summaries.log10(last)))
        ax.plot(*zip(*points, strict=True), **looks)
        ax.plot(*points[-1], "o", color=looks["color"], fillstyle="none", markersize=9)
    if math.isfinite(limit):
        ax.axhline(math.log10(limit), color="black", linewidth=0.8, linestyle=":")
    ax.set(xscale="log", xlabel="parameters of matrices", ylabel="log10 of the largest logit")
    figures.legend(figure, [ax])
    return figure
