"""Lists the config files."""

from collections.abc import Sequence

from transformer_jax.config.load import CONFIGS, load
from transformer_jax.tasks import choose
from transformer_jax.tools.show.meanings import docstring
from transformer_jax.tools.show.search import search


def configs(words: Sequence[str]) -> int:
    """Prints each config file with the first sentence of its docstring.

    words: only the files that `search` finds by them; a task and a kind of model find theirs too.

    Raises:
      ValueError: there is none.
    """
    files = {file.name: file for file in sorted(CONFIGS.glob("[!_]*.py"))}
    rows = {name: docstring(file) for name, file in files.items()}
    texts = {name: f"{row} {_kind(str(files[name]))}" for name, row in rows.items()}
    found = search(texts, words)
    if not found:
        raise ValueError(f"no config has {' and '.join(map(repr, words))} in its name or header")
    width = max(map(len, files))
    print("\n".join(f"configs/{name:{width}}  {rows[name]}" for name in found))
    return 0


def _kind(file: str) -> str:
    """What a config trains, as the values of keys name it."""
    config = load(file)
    task = choose(config.task.name, config.model.architecture).recipe.name
    return f"{task} {config.model.family} {config.model.architecture} {config.model.residual}"
