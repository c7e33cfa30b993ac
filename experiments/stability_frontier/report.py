"""The grid of losses, and for every row of it the largest learning rate that trains, and copies."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.data.corpora import bigram
from transformer_jax.tasks.tokens import PLATEAU_MARGIN

# Nats per word of a model that knows the chain of words, and nothing of the copy
CHAIN = 2 * bigram.entropy()


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes a sweep's grid and its figure; returns the table of the frontier and the figure."""
    name = runs[0].labels.get("part", "frontier")
    rows = [
        {
            **run.labels,
            "status": run.results["status"],
            "first_bad_step": run.results.get("first_bad_step"),
            "loss": run.results.get("train/token_loss"),  # of the last logging window
            "validation_loss": run.results.get("validation/token_loss"),
        }
        for run in runs
    ]
    results.write_csv(out / f"{name}.csv", rows)
    lines, numbers = [], {}
    for (scheme,), mine in results.group(rows, "scheme").items():
        line = {"scheme": figures.title(scheme)}
        for (layers, warmup), row in results.group(mine, "layers", "warmup").items():
            frontiers = _frontier(row, _trains), _frontier(row, _copies)
            line[_setting(layers, warmup)] = " / ".join(_cell(each, row) for each in frontiers)
            for what, frontier in zip(("trains", "copies"), frontiers, strict=True):
                numbers[f"{name}/{scheme}/{layers}/{warmup}/{what}"] = frontier
        lines.append(line)
    results.write_summary(out, numbers)
    description = (
        "Training loss in the last ten steps by scheme and learning rate; "
        "cells without a loss did not train: '-' plateaued, 'x' diverged; of several seeds the "
        "median, or how many train"
    )
    figure = _draw(rows, unigram=runs[0].results.get("unigram_entropy"))
    return f"{results.table(lines)}\n\n{figures.save(figure, out, name, description)}"


def _trains(row: Row) -> bool:
    return row["status"] == "finished"


def _copies(row: Row) -> bool:
    """Whether the loss is as far below the chain's as one that trains is below the unigrams'."""
    return _trains(row) and row["loss"] <= CHAIN - PLATEAU_MARGIN


def _frontier(rows: Sequence[Row], holds: Callable[[Row], bool]) -> float | None:
    """The largest learning rate for which it holds with all seeds; None: there is none."""
    rates = results.group(rows, "learning_rate").items()
    return max((rate for (rate,), cell in rates if all(map(holds, cell))), default=None)


def _cell(largest: float | None, rows: Sequence[Row]) -> str:
    rates = [row["learning_rate"] for row in rows]
    if largest is None:
        return "none"
    return f"{largest:g} or more" if largest == max(rates) else f"{largest:g}"


def _setting(layers: int, warmup: int) -> str:
    return f"{layers} layers, {f'{warmup} steps of' if warmup else 'no'} warm-up"


def _draw(rows: Sequence[Row], unigram: float | None) -> Any:
    """Schemes by learning rates, a panel for each depth and warm-up; dark cells are low losses."""
    settings = results.group(rows, "layers", "warmup")
    schemes = [scheme for (scheme,) in results.group(rows, "scheme")]
    rates = sorted({row["learning_rate"] for row in rows})
    figure, axes = figures.panels(1, len(settings), sharey=True)
    for ax, ((layers, warmup), members) in zip(axes, settings.items(), strict=True):
        shades = [[math.nan] * len(rates) for _ in schemes]
        for (scheme, rate), cell in results.group(members, "scheme", "learning_rate").items():
            line, column = schemes.index(scheme), rates.index(rate)
            trained = all(map(_trains, cell))
            loss = results.median(row["loss"] for row in cell) if trained else math.nan
            shades[line][column] = loss
            text = f"{loss:.2f}" if trained else _mark(cell)
            ax.text(column, line, text, ha="center", va="center", fontsize=8)
        # Light enough for black numbers: the colours end far above the losses.
        ax.imshow(shades, cmap="Blues_r", vmin=-2, vmax=unigram, aspect="auto")
        ax.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        ax.set_yticks(range(len(schemes)), [figures.title(scheme) for scheme in schemes])
        ax.set(xlabel="learning rate", title=_setting(layers, warmup))
    return figure


def _mark(rows: Sequence[Row]) -> str:
    """What stands where not all seeds trained."""
    trained = sum(map(_trains, rows))
    if trained:
        return f"{trained}/{len(rows)}"
    return "x" if any(row["status"] == "diverged" for row in rows) else "-"
