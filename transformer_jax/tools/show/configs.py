"""Lists the config files."""

from collections.abc import Sequence

from transformer_jax.config.load import CONFIGS, load
from transformer_jax.tasks import choose
from transformer_jax.tools.show.meanings import docstring
from transformer_jax.tools.show.search import search


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


def _kind(file: str) -> str:
    """What a config trains, as the values of keys name it."""
    config = load(file)
    task = choose(config.task.name, config.model.architecture).recipe.name
    return f"{task} {config.model.family} {config.model.architecture} {config.model.residual}"
