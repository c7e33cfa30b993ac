"""Examples as text, before any tokenizer: where they are, and columns of equal length."""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence

Examples = dict[str, list]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where the examples are. Attributes:

    source: a key of `sources.SOURCES`.
    dir: folder of the files, where the source has files.
    name: name in TFDS's catalogue, such as "wmt14_translate/de-en" ("tfds").
    source_language, target_language: endings of parallel files ("text"), features ("tfds").
    text_feature, label_feature: features ("embedded", "tfds") or columns ("tsv"; "conllu": the
        label's alone).
    document_separator: where plain text is cut into documents ("": nowhere).
    cache_dir: the embedded corpus and sets of TFDS are prepared here once.
    """

    source: str
    dir: str
    name: str
    source_language: str
    target_language: str
    text_feature: str
    label_feature: str
    document_separator: str
    cache_dir: str


def concatenate(parts: Sequence[Examples]) -> Examples:
    """The examples of all parts, which have the same columns."""
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def hold_out(examples: Examples, size: int, *, documents: bool) -> tuple[Examples, Examples]:
    """Splits off the last `size` examples; of documents the last `size` characters.

    A document in which the cut falls is divided.

    Raises:
        ValueError: one of the two parts would be empty.
    """
    first = next(iter(examples.values()))
    total = sum(map(len, first)) if documents else len(first)
    if not 0 < size < total:
        raise ValueError(
            f"data.validation_size={size}: expected 1 to {total - 1} of the {total} "
            f"{'characters' if documents else 'examples'} in data.train"
        )
    if documents:
        ((name, texts),) = examples.items()
        train, held_out = _cut(texts, total - size)
        return {name: train}, {name: held_out}
    train = {key: values[:-size] for key, values in examples.items()}
    return train, {key: values[-size:] for key, values in examples.items()}


def _cut(documents: list[str], place: int) -> tuple[list[str], list[str]]:
    """The first `place` characters, at least one, and the others."""
    ends = list(itertools.accumulate(map(len, documents)))
    number = bisect.bisect_left(ends, place)
    document = documents[number]
    place -= ends[number] - len(document)
    rest = [document[place:]] if place < len(document) else []
    return [*documents[:number], document[:place]], [*rest, *documents[number + 1 :]]
