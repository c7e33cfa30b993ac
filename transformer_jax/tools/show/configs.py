"""Lists the config files."""

from collections.abc import Sequence

from transformer_jax.config.load import CONFIGS
from transformer_jax.tools.show.meanings import docstring


def configs(words: Sequence[str]) -> int:
    """Prints each config file with the first sentence of its docstring.

    words: only the files in whose line they all stand.

    Raises:
      ValueError: there is none.
    """
    files = sorted(file for file in CONFIGS.glob("*.py") if file.stem[0] != "_")
    width = max(len(file.name) for file in files)
    rows = [f"configs/{file.name:{width}}  {docstring(file)}" for file in files]
    found = [row for row in rows if all(word.lower() in row.lower() for word in words)]
    if not found:
        raise ValueError(f"no config has {' and '.join(map(repr, words))} in its name or header")
    print("\n".join(found))
    return 0
