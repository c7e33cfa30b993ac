"""How a checkpoint of theirs wants its images: its preprocessor_config.json."""

import json
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from transformer_jax.data.read.images import ImageSettings
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.family import Settings, Values

FILE = "preprocessor_config.json"
# What all do: values are shares of 255 first.
_ALWAYS = {"do_rescale": True, "rescale_factor": 1 / 255}
_BILINEAR = 2


def read(theirs: Settings, mean: Sequence[float], std: Sequence[float]) -> Values:
    """Channels, and what values are normalised by. mean, std: of a folder that does not say.

    Raises ValueError for values that are made another way.
    """
    file = theirs.beside(FILE)
    for name, value in _ALWAYS.items():
        file.refuse(name, value)
    settings = {"data.channels": theirs.get("num_channels", 3)}
    if not file.get("do_normalize", True):
        return settings | {"pixel_mean": (0.0,), "pixel_std": (1.0,)}
    for name, default in (("mean", mean), ("std", std)):
        values = file.get(f"image_{name}", [*default])  # or one number
        settings[f"pixel_{name}"] = tuple(values) if isinstance(values, list) else (values,)
    return settings


def fitted(theirs: Settings, size: tuple[int, ...], fit: str) -> tuple[tuple[int, ...], str]:
    """Rows and columns that images are fitted to, and the key of FITS by which they are.

    Warns, in one message, of what is done to images there and not here.

    size, fit: of a folder that does not say.
    """
    file = theirs.beside(FILE)
    size, fit = _edges(file, "size", size, fit)
    done = {"do_resize": True, "resample": _BILINEAR}
    odd = [name for name, value in done.items() if file.get(name, value) != value]
    if file.get("do_center_crop", False):
        cut, _ = _edges(file, "crop_size", size[:1] * 2, "stretch")
        fit = "cover" if fit == "inside" else fit
        if cut != (size if fit == "stretch" else size[:1] * 2):
            odd += ["size", "crop_size"]
        size = cut
    if odd:
        values = ", ".join(f"{name}={file.get(name)!r}" for name in odd)
        logging.warning(
            f"{FILE}: {values} is not what is done here, where all images are resized bilinearly, "
            f"by data.image_fit={fit!r} to {size}: what the model says of them will differ a little"
        )
    return size, fit


def _edges(
    file: Settings, name: str, size: tuple[int, ...], fit: str
) -> tuple[tuple[int, ...], str]:
    """Two sides in any of their spellings, and whether they are exact or those of a box."""
    if not isinstance(value := file.get(name), dict):
        edges = file.whole(name, *size)
        if isinstance(value, int):  # of both sides, or of the shorter one
            edges = edges * 2 if fit == "stretch" else edges + file.whole("max_size", 1333)
        if len(edges) != 2:
            raise ValueError(f"{FILE}: {name}={value!r} is not rows and columns")
        return edges, "stretch" if isinstance(value, list) else fit
    part, exact = file.part(name), value.get("height") is not None
    short, long = ("height", "width") if exact else ("shortest_edge", "longest_edge")
    edges = part.whole(short, size[0]) + part.whole(long, size[1])
    part.check_known(())
    return edges, "stretch" if exact else "inside"


def channels(images: ImageSettings, theirs: Values) -> Values:
    """Their number for config.json.

    Raises ValueError where that says another one already, or images are cut as none are there.
    """
    count, (rows, columns) = images.channels, images.size
    if images.fit == "cover" and (rows != columns or "num_queries" in theirs):
        raise ValueError(
            f"data.image_fit='cover' to data.image_size={images.size} has no counterpart there, "
            "only to squares, and for boxes none"
        )
    if (only := theirs.get("num_channels", count)) != count:
        raise ValueError(f"data.channels={count} has no counterpart there, only {only}")
    return {"num_channels": count}


def save(folder: Path, kind: str, images: ImageSettings, config: TransformerConfig) -> None:
    """Writes the file of a model. kind: the class of theirs."""
    rows, columns = images.size
    size, cut = {"height": rows, "width": columns}, {}
    if images.fit == "inside":
        size = {"shortest_edge": min(images.size), "longest_edge": max(images.size)}
    if images.fit == "cover":
        cut = {"do_center_crop": True, "crop_size": size}
        size = {"shortest_edge": rows}
    settings = {
        "image_processor_type": f"{kind.partition('For')[0]}ImageProcessor",
        "do_resize": True,
        "size": size,
        **cut,
        "resample": _BILINEAR,
        **_ALWAYS,
        "do_normalize": True,
        "image_mean": config.pixel_mean * (images.channels // len(config.pixel_mean)),
        "image_std": config.pixel_std * (images.channels // len(config.pixel_std)),
    }
    (folder / FILE).write_text(json.dumps(settings, indent=1))
