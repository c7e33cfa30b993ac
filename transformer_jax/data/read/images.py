"""Images: from files to pixels, from pixels to patches, and what is drawn of them in training."""

import contextlib
import dataclasses
import functools
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int32, UInt8
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.read.examples import Picture

Pixels = UInt8[np.ndarray, "H W C"]
# Corners x0, y0, x1, y1 as shares of an image's width and height; they may reach beyond it.
Boxes = Float[np.ndarray, "M 4"]
# The same of a part of an image.
Window = tuple[float, float, float, float]

NO_BOXES: Boxes = np.zeros((0, 4))
WHOLE: Window = (0.0, 0.0, 1.0, 1.0)
_TURNED = 5  # EXIF's first orientation that exchanges rows and columns
_FORMAT = 2  # counts the ways in which pixels have been made
_MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
_SEEN = 128  # rows or columns, at least about so many, of an image in a sheet
_LARGEST = 2**14  # rows, and columns
_SHIFT = 1 / 8  # of each side
_AREAS = (0.08, 1.0)
_ASPECTS = (3 / 4, 4 / 3)  # width over height
_TRIES = 10  # at a crop that fits, after which it is the whole image
_COLOUR = (0.6, 1.4)
_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # what Pillow's "L" makes of RGB


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images become rows of patches: what encodes where no tokenizer does.

    Attributes:
        size: rows and columns of pixels that images are fitted to.
        fit: a key of FITS.
        channels: 1 (grey) or 3.
        augment: keys of AUGMENTATIONS, drawn in this order in training.
        patch_size: rows, and columns, of the pixels of a patch.
        prefix_tokens: places before the patches, which the model fills.

    Raises:
        ValueError: there are no such channels, or sizes are no multiples of the patch.
    """

    size: tuple[int, ...]
    fit: str
    channels: int
    augment: tuple[str, ...]
    patch_size: int
    prefix_tokens: int

    def __post_init__(self):
        patch, size = self.patch_size, self.size
        if self.channels not in _MODES:
            raise ValueError(f"data.channels={self.channels} is not 1 (grey) or 3")
        if len(size) != 2 or any(side % patch or not 0 < side <= _LARGEST for side in size):
            raise ValueError(
                f"data.image_size={size} is not rows and columns that are multiples of "
                f"model.patch_size={patch}, up to {_LARGEST}, as {(14 * patch, 14 * patch)}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at most, of images of either orientation."""
        rows, columns = (max(self.size),) * 2 if self.fit == "inside" else self.size
        return rows // self.patch_size, columns // self.patch_size

    @property
    def places(self) -> int:
        """Of the largest image: its patches, and those before them."""
        return self.prefix_tokens + math.prod(self.size) // self.patch_size**2

    @property
    def fingerprint(self) -> str:
        """What decides the pixels that are kept."""
        whole = self.patch_size if self.fit == "inside" else 1
        return fingerprint("images", _FORMAT, self.size, self.fit, self.channels, whole)


def decode(picture: Picture, channels: int) -> Pixels:
    """The pixels of an encoded image, turned as its EXIF says, grey or RGB; alpha is left out.

    Raises:
        ValueError: it is empty, broken, larger than Pillow's limit, has several frames, or numbers
            that are no pixels; the message names it.
    """
    with _opened(picture) as image:
        # Cameras write JPEGs with a smaller image behind the one that counts, "MPO".
        if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
            raise ValueError(f"{image.n_frames} frames or pages, expected one")  # pyright: ignore
        image = ImageOps.exif_transpose(image)
        if image.mode == "F":
            raise ValueError("its numbers are floating point, expected whole ones of 8 or 16 bits")
        if not image.mode.startswith("I"):
            return np.asarray(image.convert(_MODES[channels])).reshape(*image.size[::-1], channels)
        deep = np.asarray(image).astype(np.int64)  # 16 bits of grey
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError("its numbers have more than 16 bits")
        return np.repeat(np.round(deep / 257).astype(np.uint8)[..., None], channels, axis=-1)


def size_of(picture: Picture) -> tuple[int, int]:
    """Rows and columns of an encoded image as `decode` has it, which is not decoded for that.

    Raises ValueError where it is none.
    """
    with _opened(picture) as image:
        columns, rows = image.size
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= _TURNED
    return (columns, rows) if turned else (rows, columns)


@contextlib.contextmanager
def _opened(picture: Picture) -> Iterator[Image.Image]:
    """An encoded image, of which what Pillow raises names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of EXIF and palettes, which are repaired
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(picture.data)) as image:
                yield image
    except UnidentifiedImageError:
        known = "a format that Pillow reads" if picture.data else "an image, but it is empty"
        raise ValueError(f"{picture.name}: expected {known}") from None
    except Exception as error:  # of a broken file Pillow raises anything
        raise ValueError(f"{picture.name}: no image that can be used ({error})") from error


def resized(pixels: Pixels, size: Sequence[int], window: Window = WHOLE) -> Pixels:
    """The part of an image that lies in a window, with so many rows and columns: bilinear, over all
    pixels that a new one covers."""
    (rows, columns, channels), (x, y, x1, y1) = pixels.shape, window
    if window == WHOLE and tuple(size) == (rows, columns):
        return pixels
    part = max(0, x * columns), max(0, y * rows), min(1, x1) * columns, min(1, y1) * rows
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR, part)
    return np.asarray(image).reshape(*size, channels)


def png(pixels: Pixels) -> bytes:
    """An image as a file of PNG."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def outlined(pixels: Pixels, boxes: Float[np.ndarray, "M 4"]) -> Pixels:
    """An image with the edges of boxes, black where it is bright and white where it is dark.

    boxes: centre x and y, width and height, as shares of its sides.
    """
    edges = np.zeros(pixels.shape[:2], bool)
    rows, columns = pixels.shape[:2]
    for x, y, width, height in boxes * [columns, rows, columns, rows]:
        x0 = min(int(round(x - width / 2)), columns - 1)
        y0 = min(int(round(y - height / 2)), rows - 1)
        x1, y1 = max(x0, int(round(x + width / 2)) - 1), max(y0, int(round(y + height / 2)) - 1)
        edges[[y0, y1], x0 : x1 + 1] = True
        edges[y0 : y1 + 1, [x0, x1]] = True
    return np.where(edges[..., None], np.where(pixels < 128, np.uint8(255), np.uint8(0)), pixels)


def within(boxes: Boxes, window: Window) -> Boxes:
    """Boxes of an image as those of a part of it."""
    x, y, x1, y1 = window
    return (boxes - [x, y, x, y]) / [x1 - x, y1 - y, x1 - x, y1 - y]


def fitted(pixels: Pixels, boxes: Boxes, images: ImageSettings) -> tuple[Pixels, Boxes]:
    """An image and its boxes as the settings fit it."""
    rows, columns, _ = pixels.shape
    window, size = FITS[images.fit](rows, columns, images.size, images.patch_size)
    return resized(pixels, size, window), within(boxes, window)


def augmented(
    pixels: Pixels, boxes: Boxes, names: Sequence[str], rng: np.random.Generator
) -> tuple[Pixels, Boxes]:
    """An image of the same size and its boxes, which may lie beyond it, changed by chance.

    names: keys of AUGMENTATIONS.
    """
    for name in names:
        pixels, boxes = AUGMENTATIONS[name](pixels, boxes, rng)
    return pixels, boxes


def patches(pixels: Pixels, patch_size: int) -> UInt8[np.ndarray, "T PPC"]:
    """The patches of an image by rows, each by its rows, columns and channels."""
    rows, columns, channels = pixels.shape
    size = patch_size
    blocks = pixels.reshape(rows // size, size, columns // size, size, channels)
    return blocks.swapaxes(1, 2).reshape(-1, size * size * channels)


@functools.lru_cache
def grid(rows: int, columns: int) -> Int32[np.ndarray, "T 4"]:
    """Row, column, rows and columns of the patches of an image."""
    places = np.indices((rows, columns), np.int32).reshape(2, -1).T
    return np.concatenate([places, np.full_like(places, [rows, columns])], axis=1)


def joined(
    inputs: UInt8[np.ndarray, "T PPC"], grid: Int32[np.ndarray, "T 4"], images: ImageSettings
) -> Pixels:
    """The image that patches are of, which stand behind those before them."""
    size, channels = images.patch_size, images.channels
    _, _, rows, columns = grid[-1]
    blocks = inputs[images.prefix_tokens :].reshape(rows, columns, size, size, channels)
    return blocks.swapaxes(1, 2).reshape(rows * size, columns * size, channels)


def tiled(images: Sequence[Pixels]) -> Pixels:
    """Images side by side, in about as many rows as columns, each pixel large enough to be seen."""
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    across, scale = math.ceil(math.sqrt(len(images))), max(1, _SEEN // max(height, width))
    down = math.ceil(len(images) / across)
    sheet = np.full((down, across, height + 1, width + 1, images[0].shape[2]), 255, np.uint8)
    for number, image in enumerate(images):
        sheet[*divmod(number, across), : image.shape[0], : image.shape[1]] = image
    whole = sheet.swapaxes(1, 2).reshape(down * (height + 1), across * (width + 1), -1)
    return whole.repeat(scale, axis=0).repeat(scale, axis=1)


# (rows, columns, size, patch_size) -> the part of an image that is seen, and its rows and columns
Fit = Callable[[int, int, Sequence[int], int], tuple[Window, tuple[int, int]]]


def _stretch(rows, columns, size, patch_size):
    return WHOLE, tuple(size)


def _inside(rows, columns, size, patch_size):
    short, long = min(rows, columns), max(rows, columns)
    scale = min(min(size) / short, max(size) / long) / patch_size
    sides = (max(1, round(side * scale)) * patch_size for side in (rows, columns))
    return WHOLE, tuple(sides)


def _cover(rows, columns, size, patch_size):
    scale = max(size[0] / rows, size[1] / columns)
    height, width = size[0] / (rows * scale), size[1] / (columns * scale)
    x, y = (1 - width) / 2, (1 - height) / 2
    return (x, y, x + width, y + height), tuple(size)


FITS: dict[str, Fit] = {
    "stretch": _stretch,  # to the size, whatever the aspect
    # The aspect kept up to whole patches, as large as the size allows, lying or upright.
    "inside": _inside,
    "cover": _cover,  # the aspect kept, cut at the longer side
}

Augmentation = Callable[[Pixels, Boxes, np.random.Generator], tuple[Pixels, Boxes]]


def _flip(pixels, boxes, rng):
    if rng.random() < 0.5:
        return pixels, boxes
    return pixels[:, ::-1], boxes[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [1, 0, 1, 0]


def _shift(pixels, boxes, rng):
    rows, columns, channels = pixels.shape
    down, right = int(rows * _SHIFT), int(columns * _SHIFT)
    y, x = (int(rng.integers(2 * most, endpoint=True)) for most in (down, right))
    padded = np.zeros((rows + 2 * down, columns + 2 * right, channels), np.uint8)
    padded[down : down + rows, right : right + columns] = pixels
    left, top = (x - right) / columns, (y - down) / rows
    window = (left, top, left + 1, top + 1)
    return padded[y : y + rows, x : x + columns], within(boxes, window)


def _crop(pixels, boxes, rng):
    rows, columns, _ = pixels.shape
    window = WHOLE
    for _ in range(_TRIES):
        area, aspect = rng.uniform(*_AREAS), np.exp(rng.uniform(*np.log(_ASPECTS)))
        width = math.sqrt(area * aspect * rows / columns)
        height = area / width
        x, y = (1 - width) * rng.random(), (1 - height) * rng.random()
        if max(width, height) <= 1:
            window = (x, y, x + width, y + height)
            break
    return resized(pixels, (rows, columns), window), within(boxes, window)


def _colour(pixels, boxes, rng):
    brightness, contrast, saturation = rng.uniform(*_COLOUR, size=3)
    x = pixels * np.float32(brightness)
    mean = np.mean(_grey(x))
    x = mean + contrast * (x - mean)
    x = _grey(x) + saturation * (x - _grey(x))
    return np.clip(np.round(x), 0, 255).astype(np.uint8), boxes


def _grey(x):
    return x @ _GREY[:, None] if x.shape[-1] == 3 else x


AUGMENTATIONS: dict[str, Augmentation] = {
    "flip": _flip,  # mirrors half of the images
    "shift": _shift,  # by up to an eighth of each side, black where nothing was
    "crop": _crop,  # 8 to 100 % of the area, 3:4 to 4:3 (Szegedy et al. 2015), resized back
    "colour": _colour,  # brightness, contrast and saturation, each times U(0.6, 1.4)
}
