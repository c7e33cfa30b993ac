"""How a folder of sentence-transformers makes a vector of a text, so that `embed` does the same."""

from pathlib import Path
from typing import Any

from transformer_jax.data.read.examples import listed
from transformer_jax.tools.convert.safetensors import read_if_there

_START = "pooling_mode_"
# What changes texts before they are read, by files.
_OF_TEXTS = {"sentence_bert_config.json": "do_lower_case"}
_OF_TEXTS |= {"config_sentence_transformers.json": "default_prompt_name"}
# Our poolings by the names that theirs have had.
_POOLINGS = {"mean": "mean", "mean_tokens": "mean", "cls": "first", "cls_token": "first"}


def settings(folder: Path, most: int) -> dict[str, Any]:
    """Our settings for the vectors of a folder; none where it says nothing of them.

    most: tokens that the model reads at most. Raises ValueError for vectors that we do not have.
    """
    path = folder / _modules(folder).get("Pooling", "1_Pooling")
    if not (values := read_if_there(path / "config.json")):
        return {}
    flags = [name for name in values if name.startswith(_START) and values[name]]
    named = listed(values.get("pooling_mode", "mean"))
    modes = [name.removeprefix(_START) for name in flags] or named
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        raise ValueError(
            f"{path}: vectors by {' and '.join(modes)} have no counterpart here: "
            "choose --config.model.pooling=mean or first"
        )
    longest = read_if_there(folder / "sentence_bert_config.json").get("max_seq_length") or most
    return {"model.pooling": _POOLINGS[modes[0]], "data.max_source_length": min(most, longest)}


def left_out(folder: Path) -> list[str]:
    """What else becomes of a vector there, a sentence each."""
    others = [kind for kind in _modules(folder) if kind not in ("Transformer", "Pooling")]
    notes = [f"Its vectors go through {kind} too, which `embed` leaves out." for kind in others]
    for file, key in _OF_TEXTS.items():
        if value := read_if_there(folder / file).get(key):
            notes.append(
                f"Its texts are changed first ({key}={value!r}), which `embed` leaves out."
            )
    return notes


def _modules(folder: Path) -> dict[str, str]:
    """The folder of each module that a vector goes through, by its kind."""
    modules = read_if_there(folder / "modules.json", list)
    kinds = (str(module["type"]).rpartition(".")[2] for module in modules)
    folders = (Path(module.get("path", "1_Pooling")).name for module in modules)
    return dict(zip(kinds, folders, strict=True))
