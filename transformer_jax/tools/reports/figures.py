"""One look for all figures: readable in print, in grey, and by the colour-blind.

Colours are those of Okabe and Ito (2008). A scheme has the same colour, marker and line style in
every figure, so that no two are told apart by colour alone. Figures hold no date, so that the same
numbers give the same files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
_BLUE, _VERMILLION, _PURPLE = "#0072B2", "#D55E00", "#CC79A7"  # without yellow, too pale on white


class Looks(NamedTuple):
    """How a scheme is written and drawn, as keywords of `Axes.plot`."""

    label: str
    color: str
    marker: str
    linestyle: str


# Relatives share a colour. A test sees that every one of `SCHEMES` has a row.
_SCHEMES = {
    "post_ln": Looks("Post-LN", _VERMILLION, "o", "-"),
    "pre_ln": Looks("Pre-LN", _BLUE, "s", "-"),
    "admin": Looks("Admin", _GREEN, "^", "-"),
    "admin_constant": Looks("Admin (constant)", _GREEN, "v", "--"),
    "deepnorm": Looks("DeepNorm", _PURPLE, "D", "-"),
    "rezero": Looks("ReZero", _ORANGE, "P", "-"),
    "t_fixup": Looks("T-Fixup", _SKY, "X", "-"),
    "gpt2": Looks("GPT-2 init", _BLACK, "*", "-"),
    "sandwich": Looks("Sandwich-LN", _BLUE, "<", "--"),
    "peri_ln": Looks("Peri-LN", _SKY, ">", "--"),
    "sub_ln": Looks("Sub-LN", _PURPLE, "d", "--"),
    "layer_scale": Looks("LayerScale", _ORANGE, "p", "--"),
    "b2t": Looks("B2T", _VERMILLION, "h", "--"),
    "residual_dual": Looks("ResiDual", _BLACK, "H", "--"),
    "keel": Looks("KEEL", _VERMILLION, "8", ":"),
    "ds_init": Looks("DS-Init", _GREEN, "1", ":"),
    "depth_scaled": Looks("depth-scaled", _BLUE, "2", ":"),
}
_OTHERS = list(_SCHEMES.values())
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
        "savefig.dpi": 130,
        "svg.hashsalt": "transformer_jax",
    }
)


def style(name: Any, among: Sequence[Any] = ()) -> dict[str, Any]:
    """Keywords of `Axes.plot` for a scheme, or for one of other names in a fixed order.

    Where not all of the names are schemes, each looks as its place in the order says.
    """
    named = name in _SCHEMES and all(each in _SCHEMES for each in among)
    looks = _SCHEMES[name] if named else _OTHERS[list(among).index(name) % len(_OTHERS)]
    return looks._asdict() | {"label": title(name)}


def title(name: Any) -> str:
    """How a scheme is written in figures and tables; other names stay as they are."""
    return _SCHEMES[name].label if name in _SCHEMES else str(name)


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
