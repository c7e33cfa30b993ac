"""How a folder of sentence-transformers makes a vector of a text, so that `embed` does the same."""

from pathlib import Path
from typing import Any

from transformer_jax.tools.convert.special_tokens import read

_START = "pooling_mode_"
# Our poolings by the names that theirs have had.
_POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}


def settings(folder: Path, most: int) -> dict[str, Any]:
    """Our settings for the vectors of a folder; none where it says nothing of them.

    most: tokens that the model reads at most. Raises ValueError for vectors that we do not have.
    """
    values = read(folder / "1_Pooling" / "config.json")
    if not values:
        return {}
    flags = [name for name in values if name.startswith(_START) and values[name]]
    modes = [name.removeprefix(_START) for name in flags] or [values.get("pooling_mode", "mean")]
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise ValueError(
            f"{folder / '1_Pooling'}: vectors by {' and '.join(modes)} have no counterpart here: "
            "choose --config.model.pooling=mean or first"
        )
    longest = read(folder / "sentence_bert_config.json").get("max_seq_length") or most
    return {"model.pooling": _POOLINGS[modes[0]], "data.max_source_length": min(most, longest)}


def left_out(folder: Path) -> list[str]:
    """What else becomes of a vector there, a sentence each."""
    modules = read(folder / "modules.json", list)
    steps = [str(module["type"]).rpartition(".")[2] for module in modules]
    return [
        f"Its vectors go through {step} too, which `embed` leaves out."
        for step in steps
        if step not in ("Transformer", "Pooling")
    ]
