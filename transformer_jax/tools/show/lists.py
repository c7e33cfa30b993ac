"""Lists configs and keys, all or those that words find, the words of the field too."""

import re
import textwrap
from collections.abc import Mapping, Sequence

from transformer_jax.config.load import CONFIGS, load, nearest
from transformer_jax.tasks import choose
from transformer_jax.tools.show.meanings import Setting, docstring, settings

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


def configs(words: Sequence[str]) -> int:
    """Prints each config file with the first sentence of its docstring.

    words: only the files that `search` finds by them, which raises ValueError where there is none.
      The names of their tasks and kinds of models count too.
    """
    files = {file.name: file for file in sorted(CONFIGS.glob("[!_]*.py"))}
    rows = {name: docstring(file) for name, file in files.items()}
    texts = {name: f"{row} {_kind(str(files[name]))}" for name, row in rows.items()}
    width = max(map(len, files))
    for name in search("config", texts, words):
        print(f"configs/{name:{width}}  {rows[name]}")
    return 0


def keys(words: Sequence[str]) -> int:
    """Prints each key of the config with its default and its meaning.

    words: only the keys that `search` finds by them, which raises ValueError where there is none.
    """
    texts = {setting.key: _text(setting) for setting in settings()}
    print("\n".join(texts[key] for key in search("key", texts, words)))
    return 0


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


def _kind(file: str) -> str:
    """What a config trains, as the values of keys name it."""
    config = load(file)
    task = choose(config.task.name, config.model.architecture).recipe.name
    return f"{task} {config.model.family} {config.model.architecture} {config.model.residual}"


def _text(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    meaning = textwrap.indent(textwrap.fill(f"{setting.meaning}{choices}".strip(), 96), "    ")
    return f"{setting.key} = {setting.default!r}\n{meaning}".rstrip()
