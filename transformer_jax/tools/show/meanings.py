"""What the source says of itself: the comments beside and above its lines, and docstrings."""

import ast
import inspect
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from transformer_jax.config.kinds import CHOICES
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.runs.workdir import flatten

_END_OF_SENTENCE = re.compile(r"(?<=[.?])\s+(?=[A-Z(\"`])")


class Setting(NamedTuple):
    """A key of the config. choices: what it may be, where its meaning does not name them all."""

    key: str
    default: Any
    meaning: str
    choices: tuple[str, ...]


def settings() -> list[Setting]:
    """Every key of the config with its comments, in the order of configs/default.py."""
    values, meanings = flatten(default.get_config()), keys()

    def choices(key: str) -> tuple[str, ...]:
        names = tuple(CHOICES.get(key, ()))
        return () if all(f'"{name}"' in meanings[key] for name in names) else names

    return [
        Setting(key, values[key], meaning, choices(key))
        for key, meaning in meanings.items()
        if key in values
    ]


def keys() -> dict[str, str]:
    """The comments on each dotted key and section of the config, in its order."""
    return comments(default.get_config(), inspect.getsource(default))


def comments(config: Config, source: str) -> dict[str, str]:
    """The comments on each dotted key and section of a config, in the order of their lines.

    source: sets each in a line `SECTION.KEY = VALUE`, by the section's last name or "config".
    """
    above, beside = lines(source)
    written = [re.match(r"\s*(\w+\.\w+) = ", line) for line in source.splitlines()]
    numbers = {line[1]: number for number, line in enumerate(written, start=1) if line}

    def walk(section: Config, owner: str, path: str) -> Iterator[tuple[str, str]]:
        for number, name in sorted((numbers[f"{owner}.{name}"], name) for name in section):
            texts = map(sentence, (above(number), beside(number)))
            yield f"{path}{name}", " ".join(filter(None, texts))
            if isinstance(section[name], ConfigDict):
                yield from walk(section[name], name, f"{path}{name}.")

    return dict(walk(config, "config", ""))


def lines(source: str) -> tuple[Callable[[int], str], Callable[[int], str]]:
    """Two functions of a line's number: the comment lines right above it, the comment beside it."""
    tokens = tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__)
    remarks = [token for token in tokens if token.type == tokenize.COMMENT]
    alone = {token.start[0]: token.string for token in remarks if token.line.lstrip()[0] == "#"}
    beside = {token.start[0]: token.string for token in remarks if token.start[0] not in alone}

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
