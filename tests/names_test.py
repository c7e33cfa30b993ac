"""What docstrings name in backticks exists, and things are called by their nouns."""

import ast
import builtins
import functools
import importlib
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.configs import default
from transformer_jax.runs.workdir import flatten

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
# What objects of libraries have, which no file imports
OUTSIDE = {"as_text", "from_pretrained", "mu", "save_pretrained"}
# Names that may be joined by dots and end in a call; what else is in backticks is no name.
NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
# Names that say what was done to a thing, and not what it is
VAGUE = {"found", "kept", "those", "made", "told", "got", "gone"}


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


@functools.cache
def written(path: Path) -> frozenset[str]:
    """The names that a file's code defines, stores, or has as parameters or keys."""
    names = {path.stem, path.parent.name}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg | ast.keyword):
            names.add(node.arg or "")
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
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


@functools.cache
def module(path: Path) -> types.ModuleType:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return importlib.import_module(".".join(parts).removesuffix(".__init__"))


def owners(path: Path, first: str) -> Iterator[Any]:
    """What the first part of a dotted name may be: a module, a class, or what the file imports."""
    owner = vars(module(path)).get(first)
    if isinstance(owner, types.ModuleType | type):
        yield owner
    for file in FILES:
        if first == (file.parent.name if file.stem == "__init__" else file.stem):
            yield module(file)
        elif isinstance(member := vars(module(file)).get(first), type):
            yield member


def has(owner: Any, names: list[str]) -> bool:
    if not names:
        return True
    first, *rest = names
    if isinstance(owner, types.ModuleType):
        return hasattr(owner, first) and has(getattr(owner, first), rest)
    if not isinstance(owner, type):
        return True  # an object: what it has is not known without making one
    fields = {name for base in owner.__mro__ for name in vars(base).get("__annotations__", {})}
    of_instances = written(Path(importlib.import_module(owner.__module__).__file__ or ""))
    return hasattr(owner, first) or first in fields or first in of_instances


def exists(path: Path, name: str) -> bool:
    name = name.removeprefix("config.")
    first, *rest = name.split(".")
    if not rest:
        return first in all_written()
    if name in config_names() or any(PACKAGE.rglob(name)):
        return True
    if any(has(owner, rest) for owner in owners(path, first)):
        return True
    # An attribute of a parameter or a variable of this file
    return first in written(path) and all(part in all_written() for part in rest)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_name_what_exists(path):
    quoted = [text for doc in docstrings(path) for text in re.findall(r"`([^`\n]+)`", doc)]
    names = {match[1] for text in quoted if (match := NAME.fullmatch(text))}
    assert not {name for name in names if not exists(path, name)}


def test_things_are_called_by_their_nouns():
    for path in sorted([*FILES, *ROOT.glob("experiments/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name):
                    assert name not in VAGUE, f"{path}:{node.lineno}"
