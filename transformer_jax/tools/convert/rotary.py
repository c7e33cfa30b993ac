"""Rotation and kinds of layers in a config.json, as old and as new releases spell them."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.tools.convert.family import Settings, Values

_KINDS = {"full_attention": "full", "sliding_attention": "window"}
# The numbers of each scaling, by the names that both sides have for them.
_NUMBERS = {
    "linear": "factor",
    "llama3": "factor low_freq_factor high_freq_factor original_max_position_embeddings",
    "yarn": "factor original_max_position_embeddings beta_fast beta_slow attention_factor mscale"
    " mscale_all_dim truncate",
    "longrope": "factor original_max_position_embeddings short_factor attention_factor",
}
_NAMES = {"default": "default", **dict.fromkeys(_NUMBERS), "su": "longrope"}
ORIGINAL = "original_max_position_embeddings"
SHARE = "partial_rotary_factor"  # of a head, which is turned


def read(
    theirs: Settings,
    *,
    theta: float = 10_000.0,
    fraction: float | None = None,
    old: tuple[str, str] = ("rope_theta", SHARE),
    names: Mapping[str, str] = {},
) -> Values:
    """Our settings of a rotation. Raises ValueError for a scaling that has no counterpart.

    theta, fraction: what their class takes where a file says nothing; None: it turns all of a head,
    whatever a file says. old: the keys of both in old releases. names: of scalings that a family
    calls otherwise.
    """
    rope, nested = _part(theirs, "full_attention")
    base, share = old
    if fraction is None:
        fraction = 1.0
        for said in (theirs, rope):
            said.refuse(SHARE, fraction)
    settings = {
        "rotary_base": rope.get("rope_theta", theirs.get(base, theta)),
        "rotary_scaling": _scaling(theirs, rope, names, nested),
        "rotary_fraction": rope.get(SHARE, theirs.get(share, fraction)),
    }
    theirs.get(ORIGINAL)  # which an unscaled one may have in vain
    rope.check_known(("attn_factor", "long_factor", ORIGINAL))
    return settings


def read_by_kind(
    theirs: Settings, pattern: Values, *, theta: float, old: str, window_theta: float | None
) -> Values:
    """The rotations of full layers and of layers with a window, which have no scaling.

    pattern: as of `read_pattern`. theta, window_theta: the bases that their class takes; None: that
    of full layers. old: the key of the window's base in old releases.
    """
    settings = read(theirs, theta=theta)
    rope, nested = _part(theirs, "sliding_attention")
    base = theirs.get(old, window_theta)
    if nested:
        rope.refuse(_key(rope), "default")
        base = rope.get("rope_theta", base)
        rope.refuse(SHARE, 1.0)
        rope.check_known(())
    base = settings["rotary_base"] if base is None else base
    # What is scaled elsewhere is not scaled here, so that it is a rotation of its own then.
    alike = base == settings["rotary_base"] and not settings["rotary_scaling"]
    windows = "window" in pattern["layer_pattern"]
    return settings | {"window_rotary_base": base if windows and not alike else None}


def _part(theirs: Settings, kind: str) -> tuple[Settings, bool]:
    """What is said of the rotation of layers of a kind, and whether it is said by kind."""
    # Releases before 5 have scaling apart, which counts where both are there.
    theirs.get("rope_parameters")
    rope = theirs.part("rope_scaling" if theirs.get("rope_scaling") else "rope_parameters")
    nested = any(rope.get(name) is not None for name in _KINDS)
    return (rope.part(kind) if nested else rope), nested


def _key(rope: Settings) -> str:
    """Where the scaling has its name: new releases write that of old ones, too, and read theirs."""
    rope.get("type")
    return "rope_type" if rope.get("rope_type") is not None else "type"


def _scaling(
    theirs: Settings, rope: Settings, names: Mapping[str, str], nested: bool
) -> tuple[str, ...]:
    kind = rope.choose(_key(rope), {name: ours or name for name, ours in _NAMES.items()}, "default")
    kind = names.get(kind, kind)
    if kind == "default":
        return ()
    longest = theirs.get("max_position_embeddings")
    original = theirs.get(ORIGINAL) or rope.get(ORIGINAL) or longest
    values = {name: rope.get(name) for name in _NUMBERS[kind].split()}
    if ORIGINAL in values:
        values[ORIGINAL] = original
    if values["factor"] is None and kind in ("yarn", "longrope"):
        values["factor"] = longest / original
    if nested:  # there releases from 5 on never read it
        values.pop("truncate", None)
    return kind, *(f"{name}={_text(x)}" for name, x in values.items() if x not in (None, ()))


def _text(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return ",".join(str(int(part)) if part == int(part) else repr(float(part)) for part in parts)


def written(ours: Values) -> Values:
    """A rotation in both spellings: of releases from 5 on, and of those before."""
    base = {"rope_theta": ours["rotary_base"]}
    share = {SHARE: ours["rotary_fraction"]} if ours["rotary_fraction"] != 1 else {}
    scaling = _written_scaling(ours)
    kind = {"rope_type": "default"} if not scaling else scaling
    old = {"rope_scaling": {**scaling, **base, **share}} if scaling else {}
    return {"rope_parameters": {**kind, **base, **share}, **base, **share, **old}


def written_by_kind(ours: Values, old: str) -> Values:
    """The rotation and the list of layers of two kinds. old: the key of the window's base."""
    window = ours["window_rotary_base"] or ours["rotary_base"]
    full = {"rope_type": "default", "rope_theta": ours["rotary_base"], **_written_scaling(ours)}
    kinds = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": window},
    }
    bases = {"rope_theta": ours["rotary_base"], old: window}
    return {"rope_parameters": kinds, **bases, "layer_types": written_pattern(ours)}


def _written_scaling(ours: Values) -> Values:
    if not ours["rotary_scaling"]:
        return {}
    name, *texts = ours["rotary_scaling"]
    values: Values = {}
    for key, _, text in (text.partition("=") for text in texts):
        parts = [float(part) for part in text.split(",")]
        values[key] = parts if key == "short_factor" else parts[0]
    if ORIGINAL in values:
        values[ORIGINAL] = int(values[ORIGINAL])
    if "truncate" in values:
        values["truncate"] = bool(values["truncate"])
    if name == "longrope":  # rows that are longer are refused here
        values["long_factor"] = values["short_factor"]
    return {"rope_type": name, **values}


def read_pattern(
    theirs: Settings, ours: Values, otherwise: Sequence[str], window: int | None
) -> Values:
    """The kinds of the layers, whose list wins over a pattern of old releases, and the window.

    window: of layers that have one.
    """
    kinds = theirs.get("layer_types") or ()
    known = ", ".join(map(repr, _KINDS))
    for kind in kinds:
        if kind not in _KINDS:
            raise ValueError(f"config.json: layer_types: {kind!r} has no counterpart, only {known}")
    layers = ours["num_layers"]
    if kinds and len(kinds) != layers:
        raise ValueError(f"config.json: layer_types names {len(kinds)} layers of {layers}")
    names = tuple(_KINDS[kind] for kind in kinds) or repeated(otherwise, layers)
    return {"layer_pattern": shortest(names), "window": window if "window" in names else None}


def written_pattern(ours: Values) -> list[str]:
    """Their list of the kinds of all layers; another kind is as if it were full."""
    kinds = {kind: theirs for theirs, kind in _KINDS.items()}
    pattern = repeated(ours["layer_pattern"], ours["num_layers"])
    return [kinds.get(kind, kinds["full"]) for kind in pattern]


def round_trip(
    read: Callable[[Settings, Values], Values], write: Callable[[Values], Values]
) -> Callable[[Values], dict[str, tuple[Any, ...]]]:
    """A `Family.also`: of rotation and pattern, what of ours comes back from what is written."""

    def also(ours: Values) -> dict[str, tuple[Any, ...]]:
        if "num_layers" not in ours:  # of two stacks
            return {}
        try:
            back = ours | _PLAIN | read(Settings(write(ours), "config.json", {}), ours)
        except ValueError:
            return {name: () for name in _COMPARED}
        return {
            name: (ours[name] if what(ours) == what(back) else back[name],)
            for name, what in _COMPARED.items()
        }

    return also


def _as_windows(ours: Values) -> Any:
    """The base of layers with a window; what is scaled elsewhere is not scaled there."""
    base = ours["window_rotary_base"]
    if "window" not in _all_layers(ours) or base is None:
        return None
    return None if base == ours["rotary_base"] and not ours["rotary_scaling"] else base


def _all_layers(ours: Values) -> tuple[str, ...]:
    return repeated(ours["layer_pattern"], ours["num_layers"])


# What a family has that does not read them.
_PLAIN: Values = dict(
    layer_pattern=("full",),
    window=None,
    window_rotary_base=None,
    rotary_scaling=(),
    rotary_fraction=1.0,
)
# What a setting says, however it is spelled.
_COMPARED: dict[str, Callable[[Values], Any]] = {
    "layer_pattern": _all_layers,
    "window": lambda ours: ours["window"] if "window" in _all_layers(ours) else None,
    "window_rotary_base": _as_windows,
    "rotary_base": operator.itemgetter("rotary_base"),
    "rotary_scaling": _written_scaling,
    "rotary_fraction": operator.itemgetter("rotary_fraction"),
}


def shortest(names: Sequence[str]) -> tuple[str, ...]:
    """The shortest pattern that these layers repeat."""
    sizes = range(1, len(names) + 1)
    return next(tuple(names[:n]) for n in sizes if repeated(names[:n], len(names)) == names)


def repeated(names: Sequence[str], layers: int) -> tuple[str, ...]:
    """A pattern over so many layers."""
    return tuple(names[layer % len(names)] for layer in range(layers))
