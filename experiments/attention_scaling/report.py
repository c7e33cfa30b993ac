"""Tables, figures and numbers of the three scores."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Finished, Row

_SCORES = {
    "scaled_dot_product": "dot product / sqrt(d_k)",
    "dot_product": "dot product",
    "additive": "additive",
}
_FOUND = 1.3  # nats per word, below which no model gets without looking at the word to copy


def report(runs: list[Finished], out: Path) -> str:
    """Writes csv files, figures and the numbers; returns the text."""
    if "learning_rate" in runs[0].labels:
        return _by_rate(_named([_trained(run) for run in runs]), out)
    trained = _named([_trained(run) for run in runs if run.run.train])
    curves = _named([point for run in runs if run.run.train for point in run.curve("train/loss")])
    measured = results.rows(runs)
    start = _named([row for row in measured if "draw" in row])
    ratios = _named(_ratios([row for row in measured if "round" in row]))
    tables = {"trained": trained, "curves": curves, "start": start, "cost": ratios}
    for name, rows in tables.items():
        results.write_csv(out / f"{name}.csv", rows)
    results.write_summary(out, _numbers(trained, start, ratios))
    return "\n\n".join(
        [
            "### Training",
            f"Step at which the training loss is first below {_FOUND} nats a word, median over "
            "seeds and their range, and validation loss at the end. "
            f"{results.convention(trained, 'queries', 'head_dim', 'score')}",
            _training_table(trained),
            *(_curves_figure(str(name), rows, out) for (name,), rows in _by_queries(curves)),
            "### Before training",
            _start_table(start),
            figures.save(
                figures.lines(
                    start,
                    x="head_dim",
                    xlabel="head size d_k",
                    xscale="log",
                    y="entropy_share",
                    ylabel="entropy / largest possible",
                    by="score",
                    panel="queries",
                ),
                out,
                "start",
                "Entropy of attention before training against the size of the head",
            ),
            "### Time and memory",
            "Of forward and backward pass of one attention, as multiples of the scaled dot "
            "product's in the same round; median, and its interval over rounds.",
            _cost_table(ratios),
            figures.save(
                _cost_figure(ratios),
                out,
                "cost",
                "Time and memory of additive attention, as multiples of the scaled dot product's",
            ),
        ]
    )


def _by_rate(trained: Sequence[Row], out: Path) -> str:
    """What the best learning rate of each head size and score gives."""
    results.write_csv(out / "rates.csv", trained)
    score_of = {title: score for score, title in _SCORES.items()}
    lines, numbers = [], {}
    for (head_dim, score), members in results.group(trained, "head_dim", "score").items():
        grid = sorted({row["learning_rate"] for row in members})
        best = rates.best_rate(members)
        best_rows = [row for row in members if row["learning_rate"] == best]
        at_end = " (end of the grid)" * (best in (grid[0], grid[-1]))
        losses = [row["loss"] for row in best_rows]
        lines.append(
            {
                "d_k": head_dim,
                "score": score,
                "best rate": "none" if best is None else f"{best:g}{at_end}",
                "step": _step(best_rows) if best_rows else "",
                "loss": results.interval(losses) if best_rows else "",
            }
        )
        name = f"{score_of[score]}/d_k={head_dim}"
        numbers[f"best_rate/{name}"] = best
        numbers[f"best_loss/{name}"] = results.median(losses) if best_rows else None
    results.write_summary(out, numbers)
    figure = figures.lines(
        [{**row, "d_k": row["head_dim"]} for row in trained],
        x="learning_rate",
        y="loss",
        by="score",
        panel="d_k",
        xscale="log",
        xlabel="learning rate",
        ylabel="validation loss (nats a word)",
    )
    description = "Validation loss by learning rate, a panel for each d_k; none where it diverged"
    return "\n\n".join(
        [
            "At the best learning rate of each score and size: the step at which the training "
            f"loss is first below {_FOUND} nats a word, median over seeds and their range, and the "
            "validation loss at the end. "
            f"{results.convention(trained, 'head_dim', 'score', 'learning_rate')}",
            results.table(lines),
            figures.save(figure, out, "rates", description),
        ]
    )


def _trained(run: Finished) -> dict[str, Any]:
    """What became of a run; `found` is infinite where the loss never came so low."""
    low = [point["step"] for point in run.curve("train/loss") if point["loss"] < _FOUND]
    return {
        **run.labels,
        "status": run.results["status"],
        "loss": run.results.get("validation/token_loss", math.nan),
        "found": min(low, default=math.inf),
    }


def _by_queries(rows: Sequence[Row]):
    return results.group(rows, "queries").items()


def _curves_figure(queries: str, curves: Sequence[Row], out: Path) -> str:
    return figures.save(
        figures.lines(
            [{**row, "d_k": row["head_dim"]} for row in curves],
            x="step",
            y="loss",
            by="score",
            panel="d_k",
            xlabel=f"step ({queries})",
            ylabel="training loss (nats a word)",
        ),
        out,
        f"curves_{queries.lower()}",
        f"Training loss by step, a panel for each size of the head; {queries} queries and keys",
    )


def _named(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{**row, "score": _SCORES[row["score"]]} for row in rows]


def _ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each row with its time and memory over those of the scaled dot product in its round."""
    base = {
        (row["length"], row["head_dim"], row["round"]): row
        for row in rows
        if row["score"] == "scaled_dot_product"
    }
    ratios = []
    for row in rows:
        by = base[row["length"], row["head_dim"], row["round"]]
        memory = row["temporary_bytes"] / by["temporary_bytes"]
        ratios.append({**row, "time": row["seconds"] / by["seconds"], "memory": memory})
    return ratios


def _training_table(trained: Sequence[Row]) -> str:
    rows = []
    for (queries, head_dim), members in results.group(trained, "queries", "head_dim").items():
        row: dict[str, Any] = {"queries": queries, "d_k": head_dim}
        for (score,), runs in results.group(members, "score").items():
            row[f"step, {score}"] = _step(runs)
            row[f"loss, {score}"] = results.interval(run["loss"] for run in runs)
        rows.append(row)
    return results.table(rows)


def _step(rows: Sequence[Row]) -> str:
    step = np.median([row["found"] for row in rows])
    return "never" if math.isinf(step) else f"{step:.0f}"


def _start_table(start: Sequence[Row]) -> str:
    rows = []
    for (queries, head_dim), members in results.group(start, "queries", "head_dim").items():
        row = {"queries": queries, "d_k": head_dim}
        for (score,), draws in results.group(members, "score").items():
            row[f"entropy share, {score}"] = _median(draws, "entropy_share")
            row[f"largest logit, {score}"] = _median(draws, "largest_logit")
        rows.append(row)
    return results.table(rows)


def _cost_table(ratios: Sequence[Row]) -> str:
    rows = []
    for (length, head_dim), members in results.group(ratios, "length", "head_dim").items():
        row = {"length": length, "d_k": head_dim}
        for score in (_SCORES["dot_product"], _SCORES["additive"]):
            rounds = [member for member in members if member["score"] == score]
            row[f"time, {score}"] = results.median_interval(
                (member["time"] for member in rounds), ".2f"
            )
            row[f"memory, {score}"] = rounds[0]["memory"]
        rows.append(row)
    return results.table(rows)


def _cost_figure(ratios: Sequence[Row]):
    """Over the length at one head size, and over the head size at one length."""
    additive = [row for row in ratios if row["score"] == _SCORES["additive"]]
    figure, axes = figures.panels(1, 2, sharey=True)
    # The one shape in both: where the two lines of shapes cross.
    for ax, x, fixed, at in (
        (axes[0], "length", "head_dim", 64),
        (axes[1], "head_dim", "length", 64),
    ):
        rows = [row for row in additive if row[fixed] == at]
        for quantity in ("time", "memory"):
            points = sorted(
                (value, _median(members, quantity))
                for (value,), members in results.group(rows, x).items()
            )
            ax.plot(*zip(*points, strict=True), **figures.style(quantity, ["time", "memory"]))
            ax.set(xscale="log", yscale="log")
            ax.set_xticks([at for at, _ in points], [str(at) for at, _ in points])
            ax.set_xticks([], minor=True)
        ax.set_title(f"{fixed.replace('_', ' ')} {at}")
        ax.set_xlabel(x.replace("_", " "))
    axes[0].set_ylabel("additive / scaled dot product")
    figures.legend(figure, axes)
    return figure


def _numbers(
    trained: Sequence[Row], start: Sequence[Row], ratios: Sequence[Row]
) -> dict[str, float]:
    """Names are QUANTITY/SCORE/QUERIES/d_k=.. and cost/../length=../d_k=.., with medians."""
    score_of = {title: score for score, title in _SCORES.items()}
    numbers = {}
    for rows, quantity in (
        (trained, "loss"),
        (trained, "found"),
        (start, "entropy_share"),
        (start, "largest_logit"),
    ):
        for key, members in results.group(rows, "score", "queries", "head_dim").items():
            score, queries, head_dim = key
            name = f"{quantity}/{score_of[score]}/{queries}/d_k={head_dim}"
            numbers[name] = _median(members, quantity)
    for key, members in results.group(ratios, "score", "length", "head_dim").items():
        score, length, head_dim = key
        for quantity in ("time", "memory"):
            name = f"{quantity}/{score_of[score]}/length={length}/d_k={head_dim}"
            numbers[name] = _median(members, quantity)
    return numbers


def _median(rows: Sequence[Row], name: str) -> float:
    return results.median(row[name] for row in rows)
