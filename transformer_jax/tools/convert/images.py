"""How a checkpoint of theirs wants its images: its preprocessor_config.json."""

import json
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.data.read.images import ImageSettings
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.tools.convert.family import Settings, Values

FILE = "preprocessor_config.json"
# What all do: values are shares of 255 first, and then normalised.
_ALWAYS = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}


def read(theirs: Settings, mean: Sequence[float], std: Sequence[float]) -> Values:
    """Channels, and what values are normalised by. mean, std: of a folder that does not say.

    Raises ValueError for values that are made another way.
    """
    file = theirs.beside(FILE)
    for name, value in _ALWAYS.items():
        file.refuse(name, value)
    found = {"data.channels": theirs.get("num_channels", 3)}
    for name, default in (("mean", mean), ("std", std)):
        values = file.get(f"image_{name}", [*default])  # or one number
        found[f"pixel_{name}"] = tuple(values) if isinstance(values, list) else (values,)
    return found


def channels(images: ImageSettings, theirs: Values) -> Values:
    """Their number for config.json. Raises ValueError where that says another one already."""
    count = images.channels
    if (only := theirs.get("num_channels", count)) != count:
        raise ValueError(f"data.channels={count} has no counterpart there, only {only}")
    return {"num_channels": count}


def save(folder: Path, kind: str, images: ImageSettings, config: TransformerConfig) -> None:
    """Writes the file of a model. kind: the class of theirs."""
    rows, columns = images.size
    size = {"height": rows, "width": columns}
    if images.fit == "inside":
        size = {"shortest_edge": min(images.size), "longest_edge": max(images.size)}
    settings = {
        "image_processor_type": f"{kind.partition('For')[0]}ImageProcessor",
        "do_resize": True,
        "size": size,
        "resample": 2,  # bilinear
        **_ALWAYS,
        "image_mean": config.pixel_mean * (images.channels // len(config.pixel_mean)),
        "image_std": config.pixel_std * (images.channels // len(config.pixel_std)),
    }
    (folder / FILE).write_text(json.dumps(settings, indent=1))
