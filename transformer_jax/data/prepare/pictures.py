"""From images to rows of patches: what the tasks that read images share.

`encode` keeps pixels of a fitted size, once; `corrupt` makes patches of them, so that augmentation
is drawn anew every epoch and the size of patches may change without another preparation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.prepare.recipe import Column, Corrupt, Recipe
from transformer_jax.data.read import images
from transformer_jax.data.read.examples import Picture
from transformer_jax.data.read.images import NO_BOXES, Boxes, ImageSettings, Pixels
from transformer_jax.data.read.pictures import from_file, netpbm

_TILES = 9  # images of a contact sheet
# What is kept of an image: its pixels by rows; its rows and columns, and those of its file. Shapes
# are those of RGB and of patches of 16: `sized` gives those of a run.
KEPT = {"pixels": Column("source", shape=(3,), dtype="uint8"), "size": Column("source")}
# What a batch has of it: patches, and of each its row, column, and the rows and columns of the
# image, all 0 at places before the patches.
PATCHES = {
    "inputs": Column("source", shape=(768,), dtype="uint8"),
    "grid": Column("source", along="inputs", shape=(4,)),
}

# What boxes of batches count shares of an image's sides in.
UNIT = 2**16 - 1


def sized(recipe: Recipe, settings: ImageSettings) -> Recipe:
    """The recipe with the shapes that its columns of images have with these settings."""
    channels = settings.channels
    shapes = {"inputs": (settings.patch_size**2 * channels,), "pixels": (channels,)}

    def shape(columns: Mapping[str, Column]) -> dict[str, Column]:
        return {
            name: dataclasses.replace(column, shape=shapes.get(name, column.shape))
            for name, column in columns.items()
        }

    return dataclasses.replace(recipe, columns=shape(recipe.columns), encoded=shape(recipe.encoded))


def stored(
    pictures: Sequence[Picture], boxes: Sequence[Boxes], settings: ImageSettings
) -> tuple[dict[str, list[Any]], list[Boxes]]:
    """The columns KEPT of encoded images, and their boxes in them. Raises as `images.decode`."""
    columns: dict[str, list[Any]] = {name: [] for name in KEPT}
    inside = []
    for picture, corners in zip(pictures, boxes, strict=True):
        whole = images.decode(picture, settings.channels)
        pixels, corners = images.fitted(whole, corners, settings)
        columns["pixels"].append(pixels.reshape(-1, settings.channels))
        columns["size"].append([*pixels.shape[:2], *whole.shape[:2]])
        inside.append(corners)
    return columns, inside


def patched(pixels: Pixels, settings: ImageSettings) -> dict[str, np.ndarray]:
    """The columns PATCHES of an image."""
    patch, (rows, columns, _) = settings.patch_size, pixels.shape
    arrays = {
        "inputs": images.patches(pixels, patch),
        "grid": images.grid(rows // patch, columns // patch),
    }
    before = settings.prefix_tokens
    return {
        name: np.concatenate([np.zeros((before, array.shape[1]), array.dtype), array])
        for name, array in arrays.items()
    }


def by_hand(inputs: Sequence[str | Path | np.ndarray]) -> list[Picture]:
    """Images that are named by their paths, or given as pixels, uint8 of (H, W) or (H, W, 3).

    Raises:
        OSError: a file cannot be read.
        ValueError: pixels of another shape or type.
    """

    def picture(number: int, one: str | Path | np.ndarray) -> Picture:
        if isinstance(one, str | Path):
            return from_file(Path(one).expanduser())
        if one.dtype != np.uint8 or one.shape[2:] not in ((), (3,)) or one.ndim < 2:
            raise ValueError(
                f"image {number} is {one.dtype} of shape {one.shape}; expected uint8 of (rows, "
                "columns) or (rows, columns, 3), or a path"
            )
        return netpbm(f"image {number}", one)

    return [picture(number, one) for number, one in enumerate(inputs)]


def prompted(
    inputs: Sequence[str | Path | np.ndarray], settings: ImageSettings
) -> dict[str, list[np.ndarray]]:
    """The columns PATCHES of images. Raises as `by_hand` and `images.decode`."""
    rows = []
    for one in by_hand(inputs):
        whole = images.decode(one, settings.channels)
        rows.append(patched(images.fitted(whole, NO_BOXES, settings)[0], settings))
    return {name: [row[name] for row in rows] for name in PATCHES}


@dataclasses.dataclass(frozen=True)
class Patching:
    """What makes the columns PATCHES of KEPT ones; a task's `corrupt` adds its own columns.

    training: whether images are augmented.
    """

    images: ImageSettings
    training: bool

    def augmented(
        self, example: Mapping[str, Any], rng: np.random.Generator, boxes: Boxes = NO_BOXES
    ) -> tuple[dict[str, np.ndarray], Boxes]:
        """The columns PATCHES of an example, and its boxes, which may lie beyond the image."""
        rows, columns = example["size"][:2]
        pixels = example["pixels"].reshape(rows, columns, -1)
        if self.training:
            pixels, boxes = images.augmented(pixels, boxes, self.images.augment, rng)
        return patched(pixels, self.images), boxes


def contact_sheet(arrays: TokenArrays, corrupt: Corrupt, settings: ImageSettings) -> bytes:
    """Nine images of a split as `corrupt` makes them, with their boxes, as a file of PNG."""
    numbers = range(min(_TILES, len(arrays)))
    rows = [corrupt(arrays[number], np.random.default_rng(number)) for number in numbers]
    tiles = [images.joined(row["inputs"], row["grid"], settings) for row in rows]
    boxes = [row.get("boxes", NO_BOXES) / UNIT for row in rows]
    return images.png(images.tiled(list(map(images.outlined, tiles, boxes))))
