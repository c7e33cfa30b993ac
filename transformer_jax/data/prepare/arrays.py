"""Token arrays: the token ids of a split, in files of which only what is asked for is read."""

import bisect
import dataclasses
import itertools
import json
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from transformer_jax.data.cache import fingerprint

CHUNK = 2**20  # entries that are counted at a time, which bounds the memory that it takes
SET = "set.json"  # what is known of a prepared set
TEXTS = "texts"  # its examples, where they are kept


class FileArray:
    """A one-dimensional array of integers in a file.

    A slice is read from the file when it is asked for. So memory holds nothing of it, unlike of a
    mapped file, whose pages add up; and a file that was cut off ends in a message, not in a signal.
    """

    def __init__(self, path: Path, kept: str, used: type[np.integer]):
        """kept, used: the types of the numbers in the file and in a slice."""
        self._path, self._file = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._kept, self._used = np.dtype(kept), np.dtype(used)
        self._length = os.fstat(self._file).st_size // self._kept.itemsize

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(self._length)
        size = self._kept.itemsize
        data = os.pread(self._file, (stop - start) * size, start * size)
        if len(data) != (stop - start) * size:
            raise OSError(
                f"{self._path} was cut off after it was prepared: delete its folder and start again"
            )
        found = np.frombuffer(data, self._kept)
        return found if self._kept == self._used else found.astype(self._used)


Array = np.ndarray | FileArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """What was counted while the examples were read, and while they were made into tokens.

    Attributes:
        examples: as read.
        characters: of their texts.
        empty: examples without text, by column of texts.
        labels: how often each label occurs.
        too_long: examples that were longer than the limits, and so left out or truncated.
        content: SHA-256 of the examples.
    """

    examples: int
    characters: int
    empty: dict[str, int]
    labels: dict[str, int]
    too_long: int
    content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenArrays:
    """The token ids of a split, by columns.

    Attributes:
        columns: ids of all examples, one after the other.
        offsets: where each example starts, and at last where all end: example i has
            columns[name][offsets[name][i] : offsets[name][i + 1]].
        lengths: how many examples have each number of tokens.
        ids: how often each id occurs.
        counts: what was counted of the texts.
        fingerprint: SHA-256 of all that made the arrays: examples, tokenizer, recipe, limits.
    """

    columns: Mapping[str, Array]
    offsets: Mapping[str, Array]
    lengths: Mapping[str, Int64[np.ndarray, " longest+1"]]
    ids: Mapping[str, Int64[np.ndarray, " V"]]
    counts: Counts
    fingerprint: str

    def __len__(self) -> int:
        return len(next(iter(self.offsets.values()))) - 1

    def __getitem__(self, index: int) -> dict[str, Int32[np.ndarray, " length"]]:
        """Example `index`, by columns: this makes the arrays a Grain source."""
        example = {}
        for name, tokens in self.columns.items():
            start, stop = self.offsets[name][index : index + 2].tolist()
            example[name] = tokens[start:stop]
        return example


def load(folder: Path, names: Sequence[str]) -> TokenArrays:
    """The arrays of the columns `names` that a preparation has left in a folder."""
    known = json.loads((folder / SET).read_text())
    columns = {name: FileArray(folder / name, known["kept"], np.int32) for name in names}
    offsets = {name: FileArray(folder / f"{name}_offsets", "<i8", np.int64) for name in names}
    return TokenArrays(
        columns=columns,
        offsets=offsets,
        lengths={name: np.array(known["lengths"][name]) for name in names},
        ids={name: np.load(folder / f"{name}_ids.npy") for name in names},
        counts=Counts(**known["counts"]),
        fingerprint=known["fingerprint"],
    )


class Joined(Sequence[Any]):
    """Several sequences as one, the second behind the first."""

    def __init__(self, parts: Sequence[Any]):
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        return self._parts[number][index - (self._ends[number] - len(self._parts[number]))]


def lengths_of(offsets: Array) -> Int64[np.ndarray, " longest+1"]:
    """How many examples have each number of tokens."""
    starts = range(0, len(offsets) - 1, CHUNK)
    return summed(np.bincount(np.diff(offsets[start : start + CHUNK + 1])) for start in starts)


def ids_of(tokens: Array) -> Int64[np.ndarray, " V"]:
    """How often each id occurs."""
    starts = range(0, len(tokens), CHUNK)
    return summed(np.bincount(tokens[start : start + CHUNK]) for start in starts)


def summed(counts: Iterable[Int64[np.ndarray, " _"]]) -> Int64[np.ndarray, " most"]:
    """The sum of counts, the shorter ones taken to go on with zeros."""
    total = np.zeros(1, np.int64)
    for one in counts:
        total = np.pad(total, (0, max(0, len(one) - len(total))))
        total[: len(one)] += one
    return total


def total(counts: Iterable[Counts]) -> Counts:
    """The counts of all parts together; labels that occur most come first."""
    parts = list(counts)

    def of_each(name: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        for part in parts:
            for key, count in getattr(part, name).items():
                found[key] += count
        return dict(found)

    return Counts(
        examples=sum(part.examples for part in parts),
        characters=sum(part.characters for part in parts),
        empty=of_each("empty"),
        labels=dict(Counter(of_each("labels")).most_common()),
        too_long=sum(part.too_long for part in parts),
        content=fingerprint(*(part.content for part in parts)),
    )


class Texts(Sequence[Any]):
    """A column of the examples of a prepared set; each is read when it is asked for."""

    def __init__(self, folder: Path, name: str):
        self._offsets = FileArray(folder / f"{TEXTS}_offsets", "<i8", np.int64)
        self._lines = FileArray(folder / TEXTS, "u1", np.uint8)
        self._name = name

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        start, stop = self._offsets[index : index + 2].tolist()
        return json.loads(self._lines[start:stop].tobytes())[self._name]

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))


def load_texts(folder: Path) -> dict[str, Texts]:
    """The examples that a preparation has kept, by their columns."""
    names = json.loads((folder / SET).read_text())["texts"]
    return {name: Texts(folder, name) for name in names}
