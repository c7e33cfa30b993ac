"""Lists the keys of the config."""

import textwrap
from collections.abc import Sequence

from transformer_jax.config.load import nearest
from transformer_jax.tools.show.meanings import Setting, settings
from transformer_jax.tools.show.search import search


def keys(words: Sequence[str]) -> int:
    """Prints each key of the config with its default and its meaning.

    words: only the keys that `search` finds by them.

    Raises:
      ValueError: there is none.
    """
    texts = {setting.key: _text(setting) for setting in settings()}
    found = search(texts, words)
    if not found:
        near = ", ".join(nearest(texts, ".".join(words)))
        raise ValueError(
            f"no key has {' and '.join(map(repr, words))} in its name or meaning; the nearest keys "
            f"are {near}"
        )
    print("\n".join(texts[key] for key in found))
    return 0


def _text(setting: Setting) -> str:
    choices = f" One of {', '.join(setting.choices)}." if setting.choices else ""
    meaning = textwrap.indent(textwrap.fill(f"{setting.meaning}{choices}".strip(), 96), "    ")
    return f"{setting.key} = {setting.default!r}\n{meaning}".rstrip()
