"""Finds keys and configs by words, those of the field too."""

import re
from collections.abc import Mapping, Sequence

from transformer_jax.config.load import nearest

# What the field says -> what stands in names here
SYNONYMS = {
    "lr": "learning rate",
    "wd": "weight decay",
    "wsd": "warmup stable decay",
    "epoch": "train steps",
    "width": "d model",
    "depth": "layers",
    "context": "max target length",
    "momentum": "beta1",
    "precision": "dtype",
    "bf16": "dtype",
    "fp16": "dtype",
    "gpu": "mesh",
    "pretrained": "init from",
    "vocabulary": "vocab",
    "mlp": "d ff",
    "gqa": "num kv heads",
    "rope": "rotary",
    "flash": "attention kernel",
    "checkpointing": "remat",
}


def search(what: str, texts: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The names that have all words, then those that have them with their texts.

    Case and plural do not matter, parts of words do not count. texts: by name. what: they are of.

    Raises:
      ValueError: there is none.
    """

    def has_all(text: str) -> bool:
        return all(_words(word) in text or _words(_synonym(word)) in text for word in words)

    first = [name for name in texts if has_all(_words(name))]
    others = [name for name in texts if has_all(_words(f"{name} {texts[name]}"))]
    if not others:
        near = ", ".join(nearest(texts, ".".join(words)))
        raise ValueError(f"no {what} has {' and '.join(map(repr, words))}; the nearest are {near}")
    return list(dict.fromkeys(first + others))


def _synonym(word: str) -> str:
    return SYNONYMS.get(_words(word).strip(), word)


def _words(text: str) -> str:
    """The words of a text in lower case and singular, each between blanks."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(word.removesuffix('s') for word in words)} "
