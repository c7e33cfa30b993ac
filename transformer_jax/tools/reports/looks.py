"""How schemes are written and drawn, in figures and on pages.

Colours are those of Okabe and Ito (2008). A scheme has the same colour, marker and line style in
every figure, so that no two are told apart by colour alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    "parallel": Looks("parallel", _PURPLE, "3", ":"),
    "branch_ln": Looks("Branch-LN", _SKY, "4", ":"),
    "pre_ln_first_bare": Looks("Pre-LN, first bare", _BLUE, "x", "-."),
    "ln_scaling": Looks("LN scaling", _GREEN, "+", "-."),
    "mix_ln": Looks("Mix-LN", _VERMILLION, "|", "-."),
    "hybrid_norm": Looks("HybridNorm", _PURPLE, "_", "-."),
    "x0": Looks("x0", _ORANGE, "$0$", "-."),
}
_OTHERS = list(_SCHEMES.values())


def style(name: Any, among: Sequence[Any] = ()) -> dict[str, Any]:
    """Keywords of `Axes.plot` for a scheme, or for one of other names in a fixed order.

    What is no scheme of this library, as one of an experiment's own, looks as its place in the
    order says, and like no scheme among the names.
    """
    looks = _SCHEMES.get(name)
    if looks is None:
        free = [row for scheme, row in _SCHEMES.items() if scheme not in among]
        others = [each for each in among if each not in _SCHEMES] or [name]
        looks = (free or _OTHERS)[others.index(name) % len(free or _OTHERS)]
    return looks._asdict() | {"label": title(name)}


def title(name: Any) -> str:
    """How a scheme is written in figures and tables; other names stay as they are."""
    return _SCHEMES[name].label if name in _SCHEMES else str(name)
