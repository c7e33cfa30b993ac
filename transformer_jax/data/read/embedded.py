"""The embedded corpus as a source: parts of its splits, and columns from its features."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.corpora import grammar
from transformer_jax.data.read.examples import Examples, SourceSettings
from transformer_jax.data.read.features import BLOCK, KEYS, built_once, columns_of
from transformer_jax.process import progress

_LANGUAGES = {"en": "source", "de": "target"}
# "train", "train[:500]" or "train[-12.5%:]".
_BOUND = r"(-?[\d_]+|-?\d+(?:\.\d+)?%)?"
_PART = re.compile(rf"([\w-]+)(?:\[{_BOUND}:{_BOUND}\])?")


def read(
    settings: SourceSettings, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[Examples]:
    """The columns of parts of the corpus, in blocks.

    Pairs may name features by language, "en" and "de"; those in which one text is empty are left
    out. Of English-German pairs all other features come too, since some scores need them.

    Raises:
        ValueError: there is no such split or feature, a part is empty, or as
            `features.columns_of`.
    """
    features: list[str] = [getattr(settings, KEYS[column]) for column in columns]
    pairs = "target" in columns
    names: list[str] = [_LANGUAGES.get(name, name) for name in features] if pairs else features
    for column, name in zip(columns, names, strict=True):
        if name not in grammar.FEATURES:
            raise ValueError(
                f"data.{KEYS[column]}={name!r}: {grammar.NAME} has no such feature; its features: "
                f"{', '.join(grammar.FEATURES)}"
            )
    folder = Path(settings.cache_dir).expanduser() / "embedded" / fingerprint(grammar.NAME, splits)
    blocks = built_once(folder, lambda: _generate(splits))
    if features == ["en", "de"]:
        return blocks
    examples = columns_of(blocks, columns, names)
    return _without_empty(examples) if pairs else examples


def _without_empty(blocks: Iterator[Examples]) -> Iterator[Examples]:
    """The pairs of two texts."""
    for block in blocks:
        if pairs := [pair for pair in zip(*block.values(), strict=True) if all(pair)]:
            yield dict(zip(block, map(list, zip(*pairs, strict=True)), strict=True))


def _generate(splits: Sequence[str]) -> Iterator[Examples]:
    """All features of the examples, in blocks."""
    with progress.phase("Generating the English-German corpus"):
        for expression in splits:
            parts = ranges(expression)
            if not any(places for _, places in parts):
                raise ValueError(f"{grammar.NAME}: split {expression!r} has no example")
            for split, places in parts:
                examples = grammar.examples(split, places.stop)
                examples = itertools.islice(examples, places.start, None)
                while block := list(itertools.islice(examples, BLOCK)):
                    yield {name: [example[name] for example in block] for name in block[0]}


def ranges(expression: str) -> list[tuple[str, range]]:
    """The splits that an expression names, and which of their examples: as TFDS reads it.

    It is a sum, as "train[:10%]+test", of names of splits. They may have bounds, which count from
    the end where they are negative; percentages are rounded to the nearest example.

    Raises:
        ValueError: anything else, a split that the corpus lacks, or a bound outside of it.
    """
    spans = []
    for part in map(str.strip, expression.split("+")):
        match = _PART.fullmatch(part)
        if match is None or match[1] not in grammar.COUNTS:
            raise ValueError(
                f"data.source='embedded' has no split {part!r}, which data.train, data.validation "
                f"or data.test names; its splits are {', '.join(grammar.COUNTS)}, with bounds as "
                "in train[:500], train[10%:20%] and train[-100:], and sums of them with +"
            )
        split, start, stop = match.groups()
        size = grammar.COUNTS[split]
        places = range(*(_place(bound, size) for bound in (start or "0", stop or "100%")))
        if min(places.start, places.stop) < 0 or max(places.start, places.stop) > size:
            raise ValueError(f"data.source='embedded': {part!r} exceeds its {size} examples")
        spans.append((split, places))
    return spans


def _place(bound: str, size: int) -> int:
    """The number of examples before a bound."""
    place = round(float(bound[:-1]) * size / 100) if bound.endswith("%") else int(bound)
    return size + place if place < 0 else place
