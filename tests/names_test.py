"""What docstrings name in backticks exists: in the package, in the config or in a library."""

import ast
import builtins
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs import default
from transformer_jax.config.load import flatten

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
# What objects of libraries have, which no file imports
OUTSIDE = {"from_pretrained", "mu", "save_pretrained"}
# Names that may be joined by dots and end in a call; what else is in backticks is no name.
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


@functools.cache
def written(path: Path) -> frozenset[str]:
    """The names that a file's code defines, stores, imports, or has as attributes or keys."""
    names = {path.stem, path.parent.name}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg | ast.keyword):
            names.add(node.arg or "")
        elif isinstance(node, ast.alias):
            names |= {node.asname or node.name, *node.name.split(".")}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and str(node.value).isidentifier():
            names.add(str(node.value))
    return frozenset(names)


@functools.cache
def all_written() -> frozenset[str]:
    files = [*FILES, Path(default.__file__)]
    return frozenset().union(*map(written, files), dir(builtins), config_names(), OUTSIDE)


@functools.cache
def config_names() -> frozenset[str]:
    """Keys of the config, "section.key", and of its parts alone."""
    keys = flatten(default.get_config())
    return frozenset(keys) | {"config"} | {part for key in keys for part in key.split(".")}


def exists(name: str) -> bool:
    """Whether it is a file or a key, or some file has each of its parts."""
    name = name.removeprefix("config.")
    if name in config_names() or any(PACKAGE.rglob(name)):
        return True
    return all(part in all_written() for part in name.split("."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_name_what_exists(path):
    quoted = [text for doc in docstrings(path) for text in re.findall(r"`([^`\n]+)`", doc)]
    names = {match[1] for text in quoted if (match := NAME.fullmatch(text))}
    assert not {name for name in names if not exists(name)}
