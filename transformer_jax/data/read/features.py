"""Columns from the named features of examples, as the embedded corpus and TFDS's sets have them."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from transformer_jax.data.cache import build_once
from transformer_jax.data.read.examples import Examples, words

# column -> the setting that names the feature, or the field of a file, that it is read from.
KEYS = {
    "source": "source_language",
    "target": "target_language",
    "text": "text_feature",
    "label": "label_feature",
    "words": "text_feature",
    "tags": "label_feature",
    "image": "text_feature",
    "features": "text_feature",
    "values": "label_feature",
}
BLOCK = 16_384  # examples made at a time, which bounds what they take besides the columns

_FILE = "columns.jsonl"


def built_once(folder: Path, make: Callable[[], Iterable[Examples]]) -> Iterator[Examples]:
    """Blocks of features that take long to make: `folder` keeps them, as JSON lines."""

    def write(temporary: Path) -> None:
        with (temporary / _FILE).open("w", encoding="utf-8") as file:
            for block in make():
                file.write(json.dumps(block) + "\n")

    build_once(folder, write)
    with (folder / _FILE).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def columns_of(
    blocks: Iterable[Examples], columns: Sequence[str], names: Sequence[str]
) -> Iterator[Examples]:
    """The columns, each from the feature of its name, in blocks.

    Values are texts; tags, and the words that they stand for, are lists or separated by blanks.
    Examples without a label ("") are left out: some sentences of the embedded corpus have no "it",
    and some test splits of GLUE no labels.

    Raises:
        ValueError: no example has a label, a word has no tag, or there are not as many tags as
            words.
    """
    pairs = list(zip(columns, names, strict=True))
    renamed = ({column: block[name] for column, name in pairs} for block in blocks)
    if "label" in columns:
        return _labelled(renamed, columns[0])
    return _tagged(renamed) if "tags" in columns else renamed


def _labelled(blocks: Iterable[Examples], column: str) -> Iterator[Examples]:
    none = True
    for block in blocks:
        texts = [text for text, label in zip(block[column], block["label"], strict=True) if label]
        if texts:
            none = False
            yield {column: texts, "label": [label for label in block["label"] if label]}
    if none:
        raise ValueError(
            "data.label_feature: no example has a label; does data.train, data.validation or "
            "data.test name a split without them?"
        )


def _tagged(blocks: Iterable[Examples]) -> Iterator[Examples]:
    number = 0
    for block in blocks:
        sentences, tags = (list(map(words, block[name])) for name in ("words", "tags"))
        for sentence, labels in zip(sentences, tags, strict=True):
            if "" in labels:
                raise ValueError(f"data.label_feature: example {number} has a word without a tag")
            if len(sentence) != len(labels):
                raise ValueError(
                    f"data.text_feature and data.label_feature: example {number} has "
                    f"{len(sentence)} words, but {len(labels)} tags"
                )
            number += 1
        yield {"words": sentences, "tags": tags}
