"""Layers whose self-attentions differ: in the keys that they see, and in what turns these.

What differs rides through the scan over depth as arrays; where all layers are alike there are none.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.models.layers.positions import POSITIONS, Rotation
from transformer_jax.models.layers.settings import UNORDERED

# The setting that has the base of a rotation.
Base = Literal["rotary_base", "window_rotary_base"]


class LayerKind(NamedTuple):
    """One row.

    windowed: whether a query sees no key at a distance of `window` or more (Beltagy et al. 2020,
    2004.05150, section 3.1). turned: whether rotary positions turn queries and keys; where they do
    not, nothing but the mask tells the order (Kazemnejad et al. 2023, 2305.19466).
    """

    windowed: bool = False
    turned: bool = True


LAYER_KINDS = {
    "full": LayerKind(),
    "window": LayerKind(windowed=True),
    "unturned": LayerKind(turned=False),
    "window_unturned": LayerKind(windowed=True, turned=False),
}


class LayerPattern(NamedTuple):
    """What self-attentions differ in, arrays (L,) of a stack and () of a layer; None: in nothing.

    windowed: whether a layer has the window. rotation: its number in `Pattern.rotations`.
    """

    windowed: Any
    rotation: Any


class Pattern(NamedTuple):
    """The layers of a stack, from its bottom: whether each has a window, and what turns it.

    Attributes:
      layers: of the stack, over which the others are repeated.
    """

    windowed: tuple[bool, ...]
    bases: tuple[Base | None, ...]
    layers: int

    @classmethod
    def of(cls, names: Sequence[str], layers: int, window_base: bool) -> "Pattern":
        """The kinds repeated over so many layers.

        window_base: whether layers with a window have a base of their own.
        """
        kinds = [LAYER_KINDS[name] for name in names[:layers]]

        def base(kind: LayerKind) -> Base | None:
            if not kind.turned:
                return None
            return "window_rotary_base" if kind.windowed and window_base else "rotary_base"

        windowed = tuple(kind.windowed for kind in kinds)
        return cls(windowed, tuple(base(kind) for kind in kinds), layers)

    @property
    def windows(self) -> tuple[bool, ...]:
        """Each of `windowed` once."""
        return tuple(dict.fromkeys(self.windowed))

    @property
    def rotations(self) -> tuple[Base | None, ...]:
        """Each of `bases` once."""
        return tuple(dict.fromkeys(self.bases))

    def kinds(self) -> Iterator[tuple[bool, Base | None]]:
        """Yields both of each layer."""
        period = zip(self.windowed, self.bases, strict=True)
        return itertools.islice(itertools.cycle(period), self.layers)

    def arrays(self) -> LayerPattern:
        """What rides through the scan."""
        windowed = rotation = None
        if len(self.windows) > 1:
            windowed = np.resize(np.array(self.windowed), self.layers)
        if len(self.rotations) > 1:
            numbers = [self.rotations.index(base) for base in self.bases]
            rotation = np.resize(np.array(numbers, np.int32), self.layers)
        return LayerPattern(windowed, rotation)


def stacked_rotation(rotations: Sequence[Rotation | None]) -> Rotation | None:
    """Several on a leading axis, for a layer to take its own; one as it is.

    None is the angle 0, which turns a vector to the very same.
    """
    if len(rotations) == 1:
        return rotations[0]
    like = next(rotation for rotation in rotations if rotation is not None)
    still = Rotation(jnp.ones_like(like.cos), jnp.zeros_like(like.sin))
    filled = [still if rotation is None else rotation for rotation in rotations]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *filled)


def check_pattern(config: Any) -> None:
    """Raises ValueError where the layers of a config lack a setting, or none of them reads it."""
    kinds = [LAYER_KINDS[name] for name in config.layer_pattern]
    windowed = [kind for kind in kinds if kind.windowed]
    window, base, positions = config.window, config.window_rotary_base, config.positions
    rotary = " or ".join(repr(name) for name, row in POSITIONS.items() if row.rotation)
    turns = POSITIONS[positions].rotation is not None
    turned = turns and any(kind.turned for kind in windowed)
    problems = {
        f"names no layer: expected some of {', '.join(LAYER_KINDS)}": not kinds,
        "has layers with a window, and model.window=None: set it to the number of tokens that a "
        "query sees, itself among them": windowed and window is None,
        f"has no layer with a window, so that model.window={window} has no effect: name layers "
        "'window', or set it to None": window is not None and not windowed,
        f"has layers with a window, and what model.architecture={config.architecture!r} tells "
        "stands in no order: set it to ('full',)": windowed and config.architecture in UNORDERED,
        f"has layers that positions do not turn, and model.positions={positions!r} turn none: set "
        f"it to {rotary}, or name layers 'full' or 'window'": not turns
        and not all(kind.turned for kind in kinds),
        f"has no layer 'window' that positions turn, with model.positions={positions!r}, so that "
        f"model.window_rotary_base={base} has no effect: set it to None, or the positions to "
        f"{rotary}": base is not None and not turned,
    }
    for problem, holds in problems.items():
        if holds:
            raise ValueError(f"model.layer_pattern={config.layer_pattern!r} {problem}")
