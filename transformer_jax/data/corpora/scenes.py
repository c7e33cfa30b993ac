"""Generated pictures of objects whose boxes are exact: as many as are asked for, at no cost.

A scene is 64 x 64 grey pixels: 1 to 4 objects that do not overlap, on a dark background with noise.
Scene i of a split is a function of both, so that more of them never change those before.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

SIZE = 64
VERSION = 1  # counts the ways in which scenes have been drawn
SPLITS = ("train", "validation", "test")

_MOST = 4  # objects
_TRIES = 50  # at a place for an object, after which it is left out
_SIDES = 12, 28  # pixels of a shape, least and most
_HEIGHTS = 14, 16, 18, 20, 22, 24  # pixels of a digit
_INK = 0.25  # of a digit's darkest pixel: what lies at its edges with less is cut off
_PART = re.compile(r"(\w+)\[(\d*):(\d+)\]")

Mask = Float[np.ndarray, "h w"]


class Scene(NamedTuple):
    """A picture and its objects: x0, y0, x1, y1 of each in pixels, edge to edge, and its label."""

    pixels: UInt8[np.ndarray, "64 64"]
    boxes: list[list[int]]
    labels: list[str]


def scenes(name: str, expressions: Sequence[str]) -> Iterator[tuple[str, Scene]]:
    """The scenes of parts of splits, such as "train[:20000]", each with a name of its own.

    Raises ValueError where there is no such kind of object, split or part.
    """
    if name not in OBJECTS:
        raise ValueError(
            f"data.name={name!r}: data.source='scenes' shows {' or '.join(map(repr, OBJECTS))}"
        )
    for expression in expressions:
        match = _PART.fullmatch(expression)
        if match is None or match[1] not in SPLITS or int(match[2] or 0) >= int(match[3]):
            raise ValueError(
                f"data.source='scenes' has no part {expression!r}, which data.train, "
                f"data.validation or data.test names; expected one of {', '.join(SPLITS)} with "
                "bounds, as train[:20000] or validation[100:300]"
            )
        split = match[1]
        for number in range(int(match[2] or 0), int(match[3])):
            yield f"{split}-{number}", scene(name, split, number)


def scene(name: str, split: str, number: int) -> Scene:
    """One scene. name: a key of OBJECTS."""
    rng = np.random.default_rng([list(OBJECTS).index(name), SPLITS.index(split), number])
    light = rng.uniform(0, 0.3) + rng.normal(0, 0.05, (SIZE, SIZE))
    occupancy = np.zeros((SIZE, SIZE), bool)
    boxes, labels = [], []
    for _ in range(rng.integers(1, _MOST + 1)):
        label, mask = OBJECTS[name](rng, split)
        height, width = mask.shape
        for _ in range(_TRIES):
            y, x = rng.integers(0, SIZE - height + 1), rng.integers(0, SIZE - width + 1)
            place = slice(y, y + height), slice(x, x + width)
            if not occupancy[place].any():
                occupancy[place] = True
                light[place] = np.maximum(light[place], rng.uniform(0.6, 1) * mask)
                boxes.append([int(x), int(y), int(x) + width, int(y) + height])
                labels.append(label)
                break
    pixels = np.round(255 * np.clip(light, 0, 1)).astype(np.uint8)
    return Scene(pixels, boxes, labels)


def _shape(rng: np.random.Generator, split: str) -> tuple[str, Mask]:
    """A shape, cut to what of it is lit. All splits have the same ones."""
    name = list(_SHAPES)[rng.integers(len(_SHAPES))]
    height, width = rng.integers(_SIDES[0], _SIDES[1] + 1, 2)
    # From -1 to 1 at the centres of the pixels
    y, x = ((2 * np.arange(side) + 1) / side - 1 for side in (height, width))
    return name, _cut(_SHAPES[name](y[:, None], x[None]).astype(float), 0)


# (y, x), from the upper left -1 to 1 -> whether a point is lit
_SHAPES: dict[str, Callable[[Float[np.ndarray, "h 1"], Float[np.ndarray, "1 w"]], np.ndarray]] = {
    "rectangle": lambda y, x: (np.abs(y) <= 1) & (np.abs(x) <= 1),
    "ellipse": lambda y, x: y**2 + x**2 <= 1,
    "triangle": lambda y, x: 2 * np.abs(x) <= 1 + y,
    "cross": lambda y, x: np.minimum(np.abs(y), np.abs(x)) <= 1 / 3,
}


def _digit(rng: np.random.Generator, split: str) -> tuple[str, Mask]:
    """A handwritten digit; no other split than its own has it."""
    glyphs = _glyphs()[split]
    label, glyph = glyphs[rng.integers(len(glyphs))]
    height = _HEIGHTS[rng.integers(len(_HEIGHTS))]
    width = max(1, round(height * glyph.shape[1] / glyph.shape[0]))
    resized = _between(height, glyph.shape[0]) @ glyph @ _between(width, glyph.shape[1]).T
    return label, _cut(resized, 0)


@functools.cache
def _glyphs() -> dict[str, list[tuple[str, Mask]]]:
    """scikit-learn's 1,797 digits of 8 x 8 pixels: 80 % of them in train, 10 % in each other."""
    from sklearn.datasets import load_digits  # only here, since importing it takes long

    values, labels = load_digits(return_X_y=True)
    images = values.reshape(-1, 8, 8) / 16
    order = np.random.default_rng(0).permutation(len(images))
    glyphs = [(str(labels[n]), _cut(images[n], _INK)) for n in order]
    first, second = round(0.8 * len(glyphs)), round(0.9 * len(glyphs))
    return {"train": glyphs[:first], "validation": glyphs[first:second], "test": glyphs[second:]}


# The kinds of objects by the names that data.name gives: (generator, split) -> a label and its mask
OBJECTS = {"shapes": _shape, "digits": _digit}


def _cut(mask: Mask, least: float) -> Mask:
    """The part of a mask outside of which nothing is more than `least`."""
    rows, columns = (np.flatnonzero((mask > least).any(axis)) for axis in (1, 0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _between(new: int, old: int) -> Float[np.ndarray, "new old"]:
    """What each of the new places takes from each of the old ones: linear between the centres of
    the pixels; beyond the outermost ones as they are."""
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)[None]))
