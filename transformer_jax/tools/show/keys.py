"""Lists the keys of the config."""

import textwrap
from collections.abc import Sequence

from transformer_jax.tools.show.meanings import Setting, settings
from transformer_jax.tools.show.search import search


def keys(words: Sequence[str]) -> int:
    """Prints each key of the config with its default and its meaning.

    words: only the keys that `search` finds by them, which raises ValueError where there is none.
    """
    texts = {setting.key: _text(setting) for setting in settings()}
    print("\n".join(texts[key] for key in search("key", texts, words)))
    return 0


def _text(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    meaning = textwrap.indent(textwrap.fill(f"{setting.meaning}{choices}".strip(), 96), "    ")
    return f"{setting.key} = {setting.default!r}\n{meaning}".rstrip()
