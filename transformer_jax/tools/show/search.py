"""Finds keys and configs by words, also by those that the field uses instead of theirs."""

import re
from collections.abc import Mapping, Sequence

# What the field says -> what stands in names here
SYNONYMS = {
    "lr": "learning rate",
    "wd": "weight decay",
    "wsd": "warmup stable decay",
    "epoch": "train steps",
    "width": "d model",
    "depth": "layers",
    "context": "max target length",
    "clipping": "clip",
    "momentum": "beta1",
    "precision": "dtype",
    "gpu": "mesh",
    "pretrained": "init from",
    "microbatch": "accumulation",
    "vocabulary": "vocab",
    "mlp": "d ff",
}


def search(texts: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The names where all words are whole words of the name, then those of name and text.

    texts: by name. Lower and upper case, singular and plural are the same.
    """
    phrases = [_spellings(word) for word in words]

    def has_all(text: str) -> bool:
        return all(any(phrase in _words(text) for phrase in spelled) for spelled in phrases)

    first = [name for name in texts if has_all(name)]
    return first + [
        name for name in texts if name not in first and has_all(f"{name} {texts[name]}")
    ]


def _spellings(word: str) -> list[str]:
    phrase = _words(word)
    return [phrase, _words(SYNONYMS.get(phrase.strip(), word))]


def _words(text: str) -> str:
    """The words of a text in lower case and singular, each between blanks."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(word.removesuffix('s') for word in words)} "
