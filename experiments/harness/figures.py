"""The figures of reports, from rows; `transformer_jax.tools.reports` gives them one look.

A report makes a figure with one of the functions here, or draws its own on the axes of `panels`,
and passes it to `save`, which returns the line for the README.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.harness import rates
from experiments.harness.results import Row, group
from transformer_jax.tools.reports import figures
from transformer_jax.tools.reports.figures import legend, panels
from transformer_jax.tools.reports.intervals import mean
from transformer_jax.tools.reports.looks import style, title


def lines(
    rows: Iterable[Row],
    *,
    x: str,
    y: str,
    by: str,
    xlabel: str,
    ylabel: str,
    xscale: str = "linear",
    yscale: str = "linear",
    panel: str | None = None,
) -> Figure:
    """The mean of `y` over `x`, a line for each value of `by`, in a band of its 95 % interval.

    panel: a column each of whose values gets a panel of its own, titled "column value".
    """
    rows = list(rows)
    names = list(group(rows, by))
    parts = group(rows, panel) if panel else {("",): rows}
    figure, axes = panels(1, len(parts), sharey=True)
    for ax, ((value,), part) in zip(axes, parts.items(), strict=True):
        for (name,), members in group(part, by).items():
            _line(ax, members, x, y, style(name, [each for (each,) in names]))
        ax.set(xlabel=xlabel, xscale=xscale, yscale=yscale)
        if xscale == "log":  # of a single decade more numbers would lie over each other
            ax.xaxis.set_minor_locator(LogLocator(subs=(2.0, 4.0)))
        if panel:
            ax.set_title(f"{panel.replace('_', ' ')} {title(value)}")
    axes[0].set_ylabel(ylabel)
    legend(figure, axes)
    return figure


def by_learning_rate(rows: Iterable[Row], *, by: str, panel: str) -> Figure:
    """Validation losses of characters, as `rates.drawn_loss`: what diverged is not left out."""
    return lines(
        [{**row, "loss": rates.drawn_loss(row)} for row in rows],
        x="learning_rate",
        y="loss",
        by=by,
        panel=panel,
        xscale="log",
        xlabel="learning rate",
        ylabel="validation loss (nats a character)",
    )


def heatmaps(
    matrices: Mapping[str, np.ndarray],
    *,
    xlabel: str,
    ylabel: str,
    label: str,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Lower triangles side by side, with one scale of colours, which `label` names.

    matrices: {title: (n, n) or (n, n + 1)}. The first column is number 0; the last row and the last
      column have the same number, and the first row is on top.
    """
    lower = {name: _lower(np.asarray(matrix, float)) for name, matrix in matrices.items()}
    low = min(np.nanmin(matrix) for matrix in lower.values())
    high = max(np.nanmax(matrix) for matrix in lower.values())
    low, high = limits or (low, high)
    figure, axes = panels(1, len(lower))
    image = None
    for ax, (name, matrix) in zip(axes, lower.items(), strict=True):
        rows, columns = matrix.shape
        edges = (-0.5, columns - 0.5, columns - 0.5, columns - rows - 0.5)
        image = ax.imshow(matrix, vmin=low, vmax=high, interpolation="nearest", extent=edges)
        ax.locator_params(integer=True)
        ax.set(xlabel=xlabel, title=title(name))
    axes[0].set_ylabel(ylabel)
    if image is not None:
        figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    return figure


def statuses(
    rows: Iterable[Row],
    *,
    x: str,
    y: str,
    status: str,
    xlabel: str,
    ylabel: str,
    panel: str | None = None,
) -> Figure:
    """A grid of what became of runs: a cell says how many of its runs trained, "2/3".

    Cells where all did are dark, where none did white. "x" after the count: some diverged; "-":
    some stayed on a plateau. status: the column that holds "finished", "plateaued", "diverged".
    """
    rows = list(rows)
    parts = group(rows, panel) if panel else {("",): rows}
    columns, levels = (sorted({row[name] for row in rows}) for name in (x, y))
    figure, axes = panels(1, len(parts), sharey=True)
    for ax, ((value,), part) in zip(axes, parts.items(), strict=True):
        trained = np.full((len(levels), len(columns)), math.nan)
        for (at_x, at_y), cell in group(part, x, y).items():
            column, level = columns.index(at_x), levels.index(at_y)
            outcomes = [row[status] for row in cell]
            trained[level, column] = share = outcomes.count("finished") / len(outcomes)
            text = f"{outcomes.count('finished')}/{len(outcomes)}"
            text += " x" * ("diverged" in outcomes) + " -" * ("plateaued" in outcomes)
            color = "white" if share > 0.7 else "black"
            ax.text(column, level, text, ha="center", va="center", color=color, fontsize=8)
        ax.imshow(trained, cmap="Blues", vmin=0, vmax=1.2, aspect="auto", origin="lower")
        ax.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
        ax.set_yticks(range(len(levels)), [f"{level:g}" for level in levels])
        ax.set(xlabel=xlabel)
        if panel:
            ax.set_title(title(value))
    axes[0].set_ylabel(ylabel)
    return figure


def save(figure: Figure, out: Path, name: str, description: str) -> str:
    """Writes `out`/NAME.svg and .png; returns the markdown that shows it, described in words."""
    figures.save(figure, out / name)
    return f"![{description}]({out.name}/{name}.svg)"


def _lower(matrix: np.ndarray) -> np.ndarray:
    """The matrix with NaN, which is not drawn, above the diagonal that ends in its last corner."""
    rows, columns = matrix.shape
    return np.where(np.tri(rows, columns, columns - rows, dtype=bool), matrix, np.nan)


def _line(ax: Axes, rows: Sequence[Row], x: str, y: str, looks: Mapping[str, Any]) -> None:
    """Of two seeds Student's interval is nine deviations wide: the axis is not stretched for it,
    and it is not drawn where other points have more seeds."""
    means = {at: mean([row[y] for row in here]) for (at,), here in group(rows, x).items()}
    xs, points = zip(*sorted(means.items()), strict=True)
    values = np.array([each.value for each in points])
    half = np.array([each.half_width for each in points])
    freedom = np.array([each.freedom for each in points])
    few = freedom.max() < 2
    half[(freedom < 2) & ~few] = math.nan
    ax.plot(xs, values, markevery=max(1, len(xs) // 10), **looks)
    if np.isfinite(half).any():
        before = ax.dataLim.frozen()
        low, high = values - half, values + half
        ax.fill_between(xs, low, high, color=looks["color"], alpha=0.2, linewidth=0)
        if few:
            ax.dataLim.set(before)
