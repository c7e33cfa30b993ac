"""What the source says of itself: the comments beside and above its lines, and docstrings."""

import ast
import inspect
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from configs import default
from transformer_jax.config.kinds import CHOICES
from transformer_jax.config.load import flatten

_END_OF_SENTENCE = re.compile(r"(?<=[.?])\s+(?=[A-Z(\"`])")


class Setting(NamedTuple):
    """A key of the config. choices: what it may be, where its meaning does not name them all."""

    key: str
    default: Any
    meaning: str
    choices: tuple[str, ...]


def settings() -> list[Setting]:
    """Every key of the config with its comments, in the order of configs/default.py.

    Raises ValueError where the reader of its comments does not find a key.
    """
    values, meanings = flatten(default.get_config()), keys(inspect.getsource(default))
    if missing := values.keys() - meanings.keys():
        raise ValueError(f"configs/default.py sets {', '.join(missing)} where nobody looks")

    def choices(key: str) -> tuple[str, ...]:
        names = tuple(CHOICES.get(key, ()))
        return () if all(f'"{name}"' in meanings[key] for name in names) else names

    return [
        Setting(key, values[key], meaning, choices(key))
        for key, meaning in meanings.items()
        if key in values
    ]


def keys(source: str) -> dict[str, str]:
    """The comments on each dotted key and section that get_config sets, in its order."""
    above, beside = lines(source)
    functions = {
        node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
    }

    def walk(function: ast.FunctionDef, paths: dict[str, str]) -> Iterator[tuple[str, str]]:
        for node in function.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
                continue
            owner = ast.unparse(node.targets[0].value)
            key = ".".join(filter(None, [paths[owner], node.targets[0].attr]))
            comments = map(sentence, (above(node.lineno), beside(node.lineno)))
            yield key, " ".join(filter(None, comments))
            paths |= {ast.unparse(name): key for name in node.targets[1:]}
            called = isinstance(node.value, ast.Call) and ast.unparse(node.value.func)
            if called in functions:
                inner = functions[called]
                (made,) = (
                    node.target.id
                    for node in inner.body
                    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                )
                yield from walk(inner, {made: key})

    return dict(walk(functions["get_config"], {"config": ""}))


def lines(source: str) -> tuple[Callable[[int], str], Callable[[int], str]]:
    """Two functions of a line's number: the comment lines right above it, the comment beside it."""
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    found = [token for token in tokens if token.type == tokenize.COMMENT]
    alone = {token.start[0]: token.string for token in found if token.line.lstrip()[0] == "#"}
    beside = {token.start[0]: token.string for token in found if token.start[0] not in alone}

    def above(line: int) -> str:
        first = line
        while first - 1 in alone:
            first -= 1
        return " ".join(alone[number].removeprefix("#").strip() for number in range(first, line))

    return above, lambda line: beside.get(line, "").removeprefix("#").strip()


def docstring(path: Path) -> str:
    """The first sentence of a file's docstring, without its final stop."""
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return first_sentence(doc.partition("\n\n")[0]).rstrip(".")


def first_sentence(text: str) -> str:
    """The first sentence of a text, in one line."""
    return _END_OF_SENTENCE.split(" ".join(text.split()), maxsplit=1)[0]


def sentence(text: str) -> str:
    """With a full stop at its end and, but for names such as sacreBLEU, a capital first."""
    first = text.partition(" ")[0]
    text = text[:1].upper() + text[1:] if first == first.lower() else text
    return text + "." if text and text[-1] != "." else text
