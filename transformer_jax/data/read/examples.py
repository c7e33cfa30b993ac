"""Examples as text, before any tokenizer: where they are, and pieces of columns of equal length."""

import bisect
import collections
import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Examples = dict[str, list]


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image as its file has it.

    Attributes:
        name: what messages and results call it.
        data: the bytes of the file, in any format that Pillow reads.
    """

    name: str
    data: bytes

    def __len__(self) -> int:
        return len(self.data)


_MOST = 16_384  # examples of a piece
_MOST_CHARACTERS = 2**22  # about, of a piece: what bounds the memory that one takes
_STRIDE = 256  # examples between two looks at the characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where the examples are. Attributes:

    source: a key of `sources.SOURCES`.
    dir: folder of the files, where the source has files.
    name: in TFDS's catalogue, such as "wmt14_translate/de-en" ("tfds"), or of what is drawn
        ("scenes"), or an exponent ("zipf").
    source_language, target_language: endings of parallel files ("text"), features ("tfds") or
        fields ("json", "parquet").
    text_feature, label_feature: features ("embedded", "tfds"), columns ("tsv"; "conllu": the
        label's alone) or fields ("json", "parquet"), of a text or image and of its label or, of
        detection, its objects.
    prefix: what stands before the source of every pair.
    document_separator: where plain text is cut into documents ("": nowhere).
    skip_bad_lines: whether lines of files that are no examples are counted and left out.
    cache_dir: the embedded corpus and sets of TFDS are prepared here once.
    """

    source: str
    dir: str
    name: str
    source_language: str
    target_language: str
    text_feature: str
    label_feature: str
    prefix: str
    document_separator: str
    skip_bad_lines: bool
    cache_dir: str


def identified(value: Any) -> Any:
    """What stands for a value where examples are compared: of an image a hash of its bytes."""
    return hashlib.sha256(value.data).hexdigest() if isinstance(value, Picture) else value


def words(value: str | list[str]) -> list[str]:
    """Words as they are; a text as what blanks and line ends divide, and no other white space."""
    return re.findall(r"[^ \n]+", value) if isinstance(value, str) else value


def listed(value: str | list[str]) -> list[str]:
    """A text as a list of one; a list as it is."""
    return [value] if isinstance(value, str) else value


def as_text(value: str | list[str]) -> str:
    """A text as it is; words as a text."""
    return value if isinstance(value, str) else " ".join(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _length(value: Any) -> int:
    """The length of a text or a list; of a list of lists, that of all together."""
    return sum(map(_length, value)) if _is_nested(value) else len(value)


def gathered(columns: Sequence[str], rows: Iterable[tuple]) -> Iterator[Examples]:
    """Pieces of the rows. Where a piece ends depends on the rows alone."""
    piece: list[tuple] = []
    characters = looked = 0  # of the piece, and at the last look
    length: Callable[[Any], int] = len
    for row in rows:
        if not piece:  # the other rows of a piece are like its first
            length = _length if any(map(_is_nested, row)) else len
        piece.append(row)
        characters += sum(map(length, row))
        # Long documents are looked at one by one: so many of them would be gigabytes.
        if len(piece) % _STRIDE and characters - looked < _MOST_CHARACTERS:
            continue
        looked = characters
        if len(piece) >= _MOST or characters >= _MOST_CHARACTERS:
            yield dict(zip(columns, map(list, zip(*piece, strict=True)), strict=True))
            piece, characters, looked = [], 0, 0
    if piece:
        yield dict(zip(columns, map(list, zip(*piece, strict=True)), strict=True))


def concatenate(parts: Iterable[Examples]) -> Examples:
    """The examples of all parts, in the columns that all have."""
    first, *others = parts
    shared = [key for key in first if all(key in part for part in others)]
    return {key: [*first[key], *(v for part in others for v in part[key])] for key in shared}


def size(examples: Examples) -> int:
    """How many examples there are."""
    return len(next(iter(examples.values())))


def hold_out(
    pieces: Iterable[Examples], count: int, *, documents: bool
) -> Iterator[tuple[bool, Examples]]:
    """Yields pieces, and whether they are of the last `count` examples (documents: characters).

    A document in which the cut falls is divided. Memory holds what is held out and a piece.

    Raises:
        ValueError: one of the two parts would be empty.
    """

    def weight(examples: Examples) -> int:
        if not documents:
            return size(examples)
        (texts,) = examples.values()
        return sum(map(len, texts))

    tail: collections.deque[tuple[int, Examples]] = collections.deque()
    total = inside = 0
    for piece in pieces:
        tail.append((weight(piece), piece))
        total, inside = total + tail[-1][0], inside + tail[-1][0]
        while inside - tail[0][0] >= count > 0:
            first, examples = tail.popleft()
            inside -= first
            yield False, examples
    if not 0 < count < total:
        raise ValueError(
            f"data.validation_size={count}: expected 1 to {total - 1} of the {total} "
            f"{'characters' if documents else 'examples'} in data.train"
        )
    rest = concatenate(piece for _, piece in tail)
    place = inside - count
    divide = _cut if documents else lambda values, place: (values[:place], values[place:])
    halves = {key: divide(values, place) for key, values in rest.items()}
    for of_validation in (False, True):
        part = {key: both[of_validation] for key, both in halves.items()}
        if size(part):
            yield of_validation, part


def _cut(documents: list[str], place: int) -> tuple[list[str], list[str]]:
    """The first `place` characters, and the others."""
    if not place:
        return [], documents
    ends = list(itertools.accumulate(map(len, documents)))
    number = bisect.bisect_left(ends, place)
    document = documents[number]
    place -= ends[number] - len(document)
    rest = [document[place:]] if place < len(document) else []
    return [*documents[:number], document[:place]], [*rest, *documents[number + 1 :]]


def share(pieces: Iterable[Examples], used: float) -> Iterator[Examples]:
    """The pieces with this share of their examples, spread evenly over all.

    Raises ValueError where that is not one example.
    """
    number, nonempty = 0, False
    for piece in pieces:
        numbers = range(number, number := number + size(piece))
        upto = [int(round(n * used, 6)) for n in (*numbers, number)]
        places = [k for k, (n, more) in enumerate(itertools.pairwise(upto)) if more > n]
        if places:
            nonempty = True
            yield {key: [values[place] for place in places] for key, values in piece.items()}
    if not nonempty:
        raise ValueError(f"data.train_share={used} of {number} examples in data.train is none")


def characters_of(value: Any) -> int:
    """The characters of a text, of a number as Python writes it, or of all in a list; the bytes of
    an image."""
    if isinstance(value, list):
        return sum(map(characters_of, value))
    return len(value if isinstance(value, str | Picture) else str(value))


def sample(pieces: Iterable[Examples], most: int) -> Examples:
    """Examples of at most about `most` characters, spread evenly over all: all, where they fit.

    Which they are depends on the pieces alone.
    """
    stride, characters, number = 1, 0, 0
    parts: dict[int, tuple[int, Examples]] = {}
    for piece in pieces:
        for start in range(0, size(piece), _STRIDE):
            if number % stride == 0:
                part = {key: values[start : start + _STRIDE] for key, values in piece.items()}
                count = sum(map(characters_of, part.values()))
                parts[number] = count, part
                characters += count
            while characters > most and len(parts) > 1:
                stride *= 2
                parts = {place: part for place, part in parts.items() if place % stride == 0}
                characters = sum(count for count, _ in parts.values())
            number += 1
    return concatenate(part for _, part in parts.values())
