"""Images: what files become, where boxes are after all that is done to images, and patches."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transformer_jax.data.read import images
from transformer_jax.data.read.examples import Picture
from transformer_jax.data.read.images import AUGMENTATIONS, FITS, NO_BOXES, ImageSettings
from transformer_jax.data.read.pictures import netpbm

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (12, 20, 3), dtype=np.uint8)


def settings(**changes):
    defaults: dict[str, Any] = dict(size=(32, 48), fit="stretch", channels=3, augment=())
    defaults |= dict(patch_size=4, prefix_tokens=0)
    return ImageSettings(**(defaults | changes))


def file_of(image, format="PNG", **more):
    buffer = io.BytesIO()
    image.save(buffer, format, **more)
    return Picture("a picture", buffer.getvalue())


# Decoding


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "1", "CMYK"])
def test_every_mode_becomes_grey_or_rgb(mode, channels):
    image = Image.fromarray(COLOURS).convert(mode)
    pixels = images.decode(file_of(image, "TIFF" if mode == "CMYK" else "PNG"), channels)
    expected = np.asarray(image.convert("L" if channels == 1 else "RGB")).reshape(12, 20, channels)
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_become_eight(format):
    grey = COLOURS[..., 0].astype(np.uint16)
    pixels = images.decode(file_of(Image.fromarray(grey * 257), format), 3)
    np.testing.assert_array_equal(pixels, np.repeat(grey[..., None], 3, axis=-1))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_exif_says(orientation):
    """EXIF 2.3: which sides of what is seen row 0 and column 0 of the file are."""
    upright = COLOURS
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored))
    np.testing.assert_array_equal(images.decode(file_of(image, exif=exif), 3), upright)


def test_a_file_that_is_no_image_is_named_with_the_reason(monkeypatch):
    image = Image.fromarray(COLOURS)
    whole = file_of(image).data
    frames = {"save_all": True, "append_images": [Image.fromarray(255 - COLOURS)]}
    wrong = {
        "it is empty": b"",
        "a format that Pillow reads": b"no image",
        "truncated": whole[: len(whole) // 2],
        "2 frames": file_of(image, "GIF", **frames).data,
        "floating point": file_of(Image.fromarray(COLOURS[..., 0] / np.float32(3)), "TIFF").data,
    }
    for reason, data in wrong.items():
        with pytest.raises(ValueError, match=rf"^some/file\.png: .*{reason}"):
            images.decode(Picture("some/file.png", data), 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", COLOURS.size // 3 - 1)
    with pytest.raises(ValueError, match="a picture: .*exceeds limit"):
        images.decode(file_of(image), 3)


def test_a_damaged_byte_gives_an_image_or_one_message():
    for format in ("PNG", "JPEG", "GIF", "TIFF", "BMP"):
        whole = file_of(Image.fromarray(COLOURS), format).data
        for _ in range(40):
            data = bytearray(whole)
            data[RNG.integers(len(data))] = RNG.integers(256)
            try:
                assert images.decode(Picture("x", bytes(data)), 3).shape[2] == 3
            except ValueError as error:
                assert str(error).startswith("x: ")


# What is done to images, and where their boxes are then


def lit(rows, columns, box):
    """A black image whose pixels in a box of pixels, x0, y0, x1, y1, are white."""
    pixels = np.zeros((rows, columns, 3), np.uint8)
    x0, y0, x1, y1 = box
    pixels[y0:y1, x0:x1] = 255
    return pixels, np.array([box]) / [columns, rows, columns, rows]


def assert_lit(pixels, boxes, within):
    """The white pixels are those of the box, up to so many pixels, or none where it is gone."""
    rows, columns, _ = pixels.shape
    box = np.clip(boxes, 0.0, 1.0)[0] * [columns, rows, columns, rows]
    ys, xs = np.nonzero(pixels[..., 0] > max(np.mean(pixels), pixels.max() / 2))
    if not len(xs):
        assert min(box[2:] - box[:2]) <= within
        return
    corners = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
    np.testing.assert_allclose(box, corners, atol=within)


@pytest.mark.parametrize("fit", FITS)
def test_boxes_are_fitted_with_their_image(fit):
    for rows, columns in ((24, 48), (90, 31), (64, 96), (200, 300)):
        pixels, boxes = lit(rows, columns, (columns // 4, rows // 3, columns // 2, rows * 3 // 4))
        image, inside = images.fitted(pixels, boxes, settings(fit=fit))
        assert_lit(image, inside, 1)
        height, width, _ = image.shape
        assert height % 4 == width % 4 == 0
        if fit == "inside":  # of an upright image the size is upright
            size = (48, 32) if rows > columns else (32, 48)
            assert height <= size[0] and width <= size[1] and size != (height, width)[::-1]
            assert height == size[0] or width == size[1]
            assert abs(height - rows * min(size[0] / rows, size[1] / columns)) <= 2
            grid = settings(fit=fit).grid
            assert height <= 4 * grid[0] and width <= 4 * grid[1]
            assert height * width // 16 <= settings(fit=fit).places
        else:
            assert (height, width) == (32, 48)
        if fit != "stretch":  # nothing is squeezed, but for what whole patches need
            (x0, y0, x1, y1), old = inside[0], boxes[0]
            before = (old[2] - old[0]) * columns / ((old[3] - old[1]) * rows)
            assert (x1 - x0) * width / ((y1 - y0) * height) == pytest.approx(before, rel=0.2)


@pytest.mark.parametrize("names", [*zip(AUGMENTATIONS), tuple(AUGMENTATIONS)], ids="-".join)
def test_boxes_move_with_their_pixels(names):
    pixels, boxes = lit(40, 64, (10, 8, 31, 20))
    variants = set()
    for seed in range(40):
        changed, moved = images.augmented(pixels, boxes, names, np.random.default_rng(seed))
        again, _ = images.augmented(pixels, boxes, names, np.random.default_rng(seed))
        np.testing.assert_array_equal(changed, again)
        assert changed.shape == pixels.shape and changed.dtype == np.uint8
        assert_lit(changed, moved, 2 if "crop" in names else 0)
        variants.add(changed.tobytes())
    assert len(variants) == 2 if names == ("flip",) else len(variants) > 20


def test_what_is_drawn_keeps_to_its_bounds():
    """A shift by an eighth at most, a crop of 8 % at least and of no strange aspect."""
    pixels, box = np.zeros((40, 64, 1), np.uint8), np.array([[0.0, 0.0, 1.0, 1.0]])

    def drawn(name):
        draws = map(np.random.default_rng, range(200))
        return np.concatenate([images.augmented(pixels, box, [name], rng)[1] for rng in draws])

    shifts, crops = drawn("shift"), drawn("crop")
    assert np.abs(shifts[:, :2]).max() == 1 / 8
    assert set(np.round(shifts[:, 0] * 64)) == set(range(-8, 9))
    sides = 1 / (crops[:, 2:] - crops[:, :2])  # the share of columns and of rows
    areas, aspects = sides.prod(axis=1), sides[:, 0] * 64 / (sides[:, 1] * 40)
    assert 0.08 <= areas.min() < 0.15 and 0.7 < areas.max() <= 1
    assert 3 / 4 <= aspects.min() < 0.85 and 1.2 < aspects.max() <= 4 / 3


def test_colours_change_by_the_factors_that_are_drawn():
    pixels = RNG.integers(60, 120, (8, 8, 3)).astype(np.uint8)
    image, _ = images.augmented(pixels, NO_BOXES, ["colour"], np.random.default_rng(3))
    brightness, contrast, saturation = np.random.default_rng(3).uniform(0.6, 1.4, 3)
    expected = pixels * brightness
    grey = expected @ [0.299, 0.587, 0.114]
    expected = grey.mean() + contrast * (expected - grey.mean())
    grey = (expected @ [0.299, 0.587, 0.114])[..., None]
    expected = np.clip(grey + saturation * (expected - grey), 0, 255)
    assert np.abs(image - expected).max() <= 0.51


def test_a_box_at_the_far_edge_is_drawn_there():
    image = images.outlined(np.zeros((8, 8, 1), np.uint8), np.array([[0.999, 0.999, 0.002, 0.002]]))
    np.testing.assert_array_equal(np.argwhere(image), [[7, 7, 0]])


# Patches


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_blocks_of_pixels_where_the_grid_says(channels):
    pixels = COLOURS[..., :channels]
    patches, places = images.patches(pixels, 4), images.grid(3, 5)
    assert patches.shape == (15, 16 * channels)
    for patch, (row, column, rows, columns) in zip(patches, places, strict=True):
        block = pixels[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
        np.testing.assert_array_equal(patch, block.reshape(-1))
        assert (rows, columns) == (3, 5)
    assert len({tuple(place) for place in places}) == 15
    joined = images.joined(patches, places, settings(channels=channels))
    np.testing.assert_array_equal(joined, pixels)


def test_a_sheet_shows_every_image_at_its_place():
    tiles = [np.full((8, 8, 1), number, np.uint8) for number in range(7)]
    sheet = images.decode(Picture("sheet", images.png(images.tiled(tiles))), 1)
    assert set(np.unique(sheet)) == {*range(7), 255}
    np.testing.assert_array_equal(images.decode(netpbm("x", COLOURS), 3), COLOURS)


@pytest.mark.parametrize("size", [(32,), (0, 4)])
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(ValueError, match="data.image_size"):
        settings(size=size)


def test_what_is_kept_depends_on_channels_and_where_sizes_do_on_the_patch():
    assert settings(channels=1).fingerprint != settings().fingerprint
    inside = settings(fit="inside")
    assert inside.fingerprint != settings(fit="inside", patch_size=8).fingerprint
