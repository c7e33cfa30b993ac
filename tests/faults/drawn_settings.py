"""Settings as they are drawn: of every key of the config typical, boundary and wrong values."""

import math
from typing import Any

from hypothesis import strategies as st

from transformer_jax.config import kinds
from transformer_jax.config.bounds import bounds
from transformer_jax.config.load import _defaults, flatten
from transformer_jax.configs import default

KINDS, DEFAULTS = _defaults(default.get_config)[1], flatten(default.get_config())
_NAMES = sorted({name for names in kinds.CHOICES.values() for name in names})
_TEXTS = "|a|en|de|text|label|0|None|nowhere|@/pairs|é\u2028|a b|/dev/null|~nobody_here/x|../x|\n\n"
_TEXTS = [*_TEXTS.split("|"), "v5e-16", "\udc80", "%s{}", "[é", "x" * 5000]
_SPLITS = ["train", "validation", "test", "train.en", "*", "none", "", "t*", "[", "../texts/train"]
# The first is one with which training would take long.
_WRONG = ["1e5", None, "many", "nan", True, 1.5, -1, (), [], {}, {"a": 1}, ((),), (1, 2), "'a"]
_WRONG += ["\\x", "1_0", 10**400, ("a",), (("a",),), [[1, "a", None]], "((", "", "inf", "0x10", "١"]
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")  # of a command line
_INTS = [0, 1, 2, 3, 4, 6, 7, 8, 12]  # with which training takes no longer
_LARGE = [2**31 - 1, 2**31, 10**9, 10**20, -(10**9), 2**24]
_FLOATS = [0.0, 1.0, 0.5, 1e-9, 0.1, 2.0, 10.0]
_EXTREME = [1e39, -0.1, math.inf, math.nan, 3e38, 1e-50, -1e38, 1.0000001]


def values(key: str, *, small: bool) -> st.SearchStrategy[Any]:
    """Values of a key, most of its type. small: none with which training would take long."""
    kind, wrong = KINDS[key].type, st.sampled_from(_WRONG[small:])
    names = [*kinds.CHOICES.get(key, ())]
    if kind is bool:
        typical = st.booleans()
    elif kind in (int, float):
        bound = bounds(key, kind)
        ends = [end for end in (bound.least, bound.most) if abs(end) < (99 if small else math.inf)]
        steps = (-1, 0, 1) if kind is int else (-1e-3, 0.0, 1e-3)
        others = ([] if small else _LARGE) if kind is int else _EXTREME
        typical = st.sampled_from(_INTS if kind is int else _FLOATS)
        edges = [kind(end) + step for end in ends for step in steps] + others
        wrong |= st.sampled_from(edges) if edges else st.nothing()
        wrong |= st.nothing() if kind is int else st.floats(width=32)
    elif kind is str:
        typical = st.sampled_from(names or _TEXTS)
        wrong |= st.sampled_from(_NAMES) | st.text(_CHARACTERS, max_size=9)
    else:
        rows = st.tuples(*map(_like, kinds.ROWS[key][0])) if key in kinds.ROWS else st.nothing()
        numbers = [4, 8, 12, 0.5] if KINDS[key].item is not str else _SPLITS
        typical = st.lists(rows | st.sampled_from(names or numbers), max_size=3).map(tuple)
    typical |= st.just(DEFAULTS[key]) | st.none() if KINDS[key].may_be_none else st.nothing()
    return st.one_of(typical, typical, wrong)


def _like(item: Any) -> st.SearchStrategy[Any]:
    """Items of a row like that of an example."""
    typical = _SPLITS if isinstance(item, str) else [*_INTS, *_FLOATS, *_EXTREME]
    return st.just(item) | st.sampled_from(typical)


def text_of(value: Any) -> str:
    """A value as a command line writes it."""
    return value if isinstance(value, str) else repr(value)


def meant(key: str, value: Any) -> Any:
    """The value that a text of `text_of` stands for in this key; `...` where the text decides."""
    text = text_of(value)
    if text == "None" and KINDS[key].may_be_none:
        return None
    if KINDS[key].type is str:
        return ... if "\\" in text or text[:1] in ("'", '"') else text
    return ... if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


@st.composite
def pairs(draw: st.DrawFn, *, small: bool) -> dict[str, Any]:
    """Two keys with a value each."""
    keys = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=2, unique=True))
    return {key: draw(values(key, small=small)) for key in keys}
