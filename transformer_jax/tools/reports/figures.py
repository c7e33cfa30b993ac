"""One look for all figures: readable in print, in grey, and by the colour-blind.

Figures hold no date, so that the same numbers give the same files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 3.4, 2.8  # inches, of one panel
# Set for good: nothing else in the process draws.
matplotlib.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 9,
        "figure.constrained_layout.use": True,
        "image.cmap": "cividis",  # rises evenly in brightness, also for the colour-blind
        "legend.frameon": False,
        "legend.fontsize": 8,
        "lines.linewidth": 1.3,
        "lines.markersize": 4,
        "savefig.bbox": "tight",  # a label that is longer than its panel is not cut
        "savefig.dpi": 130,
        "svg.hashsalt": "transformer_jax",
    }
)


def panels(rows: int = 1, columns: int = 1, **arguments: Any) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row. `arguments`: of `Figure.subplots`, as sharey=True."""
    figure = Figure(figsize=(_WIDTH * columns + 1.2, _HEIGHT * rows))
    axes = figure.subplots(rows, columns, squeeze=False, **arguments)
    return figure, list(axes.flat)


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, at their right, each name once."""
    entries = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside right upper")


def save(figure: Figure, stem: Path) -> None:
    """Writes STEM.svg and STEM.png."""
    # Neither a date nor a version: an unchanged figure is an unchanged file.
    figure.savefig(f"{stem}.svg", metadata={"Date": None, "Creator": None})
    figure.savefig(f"{stem}.png", metadata={"Software": None})
