"""Frequencies of rotary positions for rows that are longer than those of training.

Each row takes its numbers by the names of Hugging Face's config.json.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float


class RotaryScaling(NamedTuple):
    """One row.

    Attributes:
      scaled: (frequencies, base, its numbers) -> frequencies, and a gain on cosines and sines.
      bounded: whether they are others in rows of more than original_max_position_embeddings
        tokens, which are refused.
    """

    scaled: Callable[..., tuple[Float[np.ndarray, "half_R"], float]]
    bounded: bool = False


def _llama3(
    f, base, *, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings
):
    turns = original_max_position_embeddings * f / (2 * math.pi)
    fast = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return f * (fast + (1 - fast) / factor), 1.0


def _yarn(
    f, base, *, factor, original_max_position_embeddings, beta_fast=32, beta_slow=1, truncate=1,
    attention_factor=0, mscale=0, mscale_all_dim=0,
):  # fmt: skip
    def place(turns: float) -> float:  # of the pair that turns so often in a row of training
        length = original_max_position_embeddings / (2 * math.pi * turns)
        return len(f) * math.log(length) / math.log(base)

    def gain(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    first, last = place(beta_fast or 32), place(beta_slow or 1)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(0, first), min(2 * len(f) - 1, last)
    slow = np.clip((np.arange(len(f)) - first) / (last - first or 0.001), 0, 1)
    both = mscale and mscale_all_dim
    ratio = gain(mscale) / gain(mscale_all_dim) if both else gain(1)
    return f * (1 - slow + slow / factor), attention_factor or ratio


def _longrope(
    f, base, *, short_factor, original_max_position_embeddings, factor=1, attention_factor=0
):
    if np.size(short_factor) != len(f):
        raise ValueError(
            f"model.rotary_scaling has {np.size(short_factor)} numbers short_factor, and {len(f)} "
            "pairs of channels turn: give one of each"
        )
    longer = math.log(max(factor, 1)) / np.log(original_max_position_embeddings)
    return f / short_factor, attention_factor or math.sqrt(1 + longer)


ROTARY_SCALINGS = {
    # Chen et al. 2023 (2306.15595), section 2.3.
    "linear": RotaryScaling(lambda f, base, *, factor: (f / factor, 1.0)),
    # Llama 3.1's code.
    "llama3": RotaryScaling(_llama3),
    # Peng et al. 2023 (2309.00071), section 3, and DeepSeek's code.
    "yarn": RotaryScaling(_yarn),
    # Ding et al. 2024 (2402.13753) and Phi-3's code, of short rows, where its gain counts too.
    "longrope": RotaryScaling(_longrope, bounded=True),
    # In rows as short as those of training nothing changes.
    "dynamic": RotaryScaling(
        lambda f, base, *, original_max_position_embeddings, factor=1: (f, 1.0), bounded=True
    ),
}


def read(scaling: tuple[str, ...]) -> tuple[RotaryScaling, dict[str, Any]]:
    """The row and its numbers, of its name and texts "NAME=NUMBER" or "NAME=NUMBER,NUMBER,...".

    Raises:
      ValueError: there is no such row or number, or one is missing.
    """
    name, *texts = scaling
    if name not in ROTARY_SCALINGS:
        raise ValueError(
            f"model.rotary_scaling begins with {name!r}: expected one of "
            f"{', '.join(map(repr, ROTARY_SCALINGS))}"
        )
    row, numbers = ROTARY_SCALINGS[name], {}
    parameters = list(inspect.signature(row.scaled).parameters.values())[2:]
    for text in texts:
        number, _, value = text.partition("=")
        try:
            parts = np.array(value.split(","), float)
        except ValueError:
            parts = np.array([math.nan])
        known = number in [one.name for one in parameters]
        if not (known and np.all(parts >= 0)) or (len(parts) > 1 and number != "short_factor"):
            raise ValueError(
                f"model.rotary_scaling: {text!r} is not a number, as 'factor=8', that {name!r} "
                f"takes, which are {', '.join(one.name for one in parameters)}"
            )
        numbers[number] = parts if number == "short_factor" else float(parts[0])
    missing = [one.name for one in parameters if one.default is one.empty]
    if missing := [one for one in missing if not np.all(numbers.get(one, 0))]:
        lacks = ", ".join(missing)
        raise ValueError(f"model.rotary_scaling of {name!r} lacks {lacks} (numbers above 0)")
    return row, numbers
