"""Token arrays: what a split is made into, in files of which only what is asked for is read."""

import dataclasses
import json
import math
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.prepare.recipe import Column, Recipe
from transformer_jax.data.read.examples import Examples

CHUNK = 2**20  # entries that are counted at a time, which bounds the memory that it takes
SET = "set.json"  # what is known of a prepared set
TEXTS = "texts"  # its examples, where they are kept
HASHES = "hashes"  # of the examples, to find those that two splits share


class FileArray:
    """An array of numbers in a file, of which a slice is read when it is asked for.

    So memory holds nothing of it, unlike of a mapped file, whose pages add up; and a file that was
    cut off ends in a message, not in a signal.
    """

    def __init__(self, path: Path, stored: str, used: str = "", shape: tuple[int, ...] = ()):
        """stored, used: dtypes of the file and of a slice ("": as stored). shape: an entry's."""
        self._path, self._file = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._stored, self._used, self._shape = np.dtype(stored), np.dtype(used or stored), shape
        self._size = self._stored.itemsize * math.prod(shape)
        self._length = os.fstat(self._file).st_size // self._size

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, places: slice) -> Shaped[np.ndarray, "..."]:
        start, stop, _ = places.indices(self._length)
        data = os.pread(self._file, (stop - start) * self._size, start * self._size)
        if len(data) != (stop - start) * self._size:
            raise OSError(
                f"{self._path} was cut off after it was prepared: delete its folder and start again"
            )
        entries = np.frombuffer(data, self._stored).reshape(-1, *self._shape)
        return entries.astype(self._used, copy=False)


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
        long_characters, long_tokens: those of their texts, and what is left of their tokens.
        left_out: how much in the examples nothing is made of, and what that is.
        content: SHA-256 of the examples.
    """

    examples: int
    characters: int
    empty: dict[str, int]
    labels: dict[str, int]
    too_long: int
    content: str
    long_characters: int = 0
    long_tokens: int = 0
    left_out: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenArrays:
    """The token ids of a split, or the numbers in their place, by columns.

    Attributes:
        columns: the entries of all examples, one after the other.
        offsets: where each example starts, and at last where all end: example i has
            columns[name][offsets[name][i] : offsets[name][i + 1]].
        lengths: how many examples have each number of entries.
        ids: how often each id occurs, by the columns that are counted.
        counts: what was counted of the texts.
        fingerprint: SHA-256 of all that made the arrays: examples, tokenizer, recipe, limits.
        folder: where they are.
    """

    columns: Mapping[str, Array]
    offsets: Mapping[str, Array]
    lengths: Mapping[str, Int64[np.ndarray, " longest+1"]]
    ids: Mapping[str, Int64[np.ndarray, " V"]]
    counts: Counts
    fingerprint: str
    folder: Path

    def __len__(self) -> int:
        return len(next(iter(self.offsets.values()))) - 1

    def __getitem__(self, index: int) -> dict[str, Shaped[np.ndarray, "length ..."]]:
        """Example `index`, by columns: this makes the arrays a Grain source."""
        example = {}
        for name, entries in self.columns.items():
            start, stop = self.offsets[name][index : index + 2].tolist()
            example[name] = entries[start:stop]
        return example

    def counts_of(self, column: str, corrupt: Any) -> Float64[np.ndarray, " V"]:
        """How often each id is in a column that is counted, or that `corrupt` makes of the others:
        then by a thousand draws."""
        if column in self.ids:
            return self.ids[column].astype(np.float64)
        numbers, rng = np.linspace(0, len(self) - 1, 1_000).astype(int), np.random.default_rng(0)
        rows = [corrupt(self[number], rng)[column] for number in numbers]
        size = next(iter(self.ids.values())).size
        counts = np.bincount(np.concatenate(rows), minlength=size)
        return counts * len(self) / len(numbers)

    def texts(self) -> Examples:
        """The examples as they were read, by their columns, where the preparation has kept them."""
        with (self.folder / TEXTS).open(encoding="utf-8", newline="\n") as lines:
            rows = list(map(json.loads, lines))
        return {name: [row[name] for row in rows] for name in rows[0]}

    def hashes(self) -> FileArray:
        """A number for each example, the same for the same example."""
        return FileArray(self.folder / HASHES, "<u8")


def load(folder: Path, recipe: Recipe) -> TokenArrays:
    """The arrays that a preparation has left in a folder."""
    known = json.loads((folder / SET).read_text())

    def entries(name: str, column: Column) -> FileArray:
        stored = known["kept"] if column.is_plain else column.dtype
        return FileArray(folder / name, stored, column.dtype, column.shape)

    return TokenArrays(
        columns={name: entries(name, column) for name, column in recipe.stored.items()},
        offsets={name: FileArray(folder / f"{name}_offsets", "<i8") for name in recipe.stored},
        lengths={name: np.array(known["lengths"][name]) for name in recipe.stored},
        ids={name: np.load(folder / f"{name}_ids.npy") for name in recipe.counted},
        counts=Counts(**known["counts"]),
        fingerprint=known["fingerprint"],
        folder=folder,
    )


def chunks(array: Array, more: int = 0) -> Iterator[np.ndarray]:
    """The entries of an array, so many at a time; of the next chunk as many `more`."""
    for start in range(0, len(array) - more, CHUNK):
        yield array[start : start + CHUNK + more]


def lengths_of(offsets: Array) -> Int64[np.ndarray, " longest+1"]:
    """How many examples have each number of entries."""
    return summed(np.bincount(np.diff(chunk)) for chunk in chunks(offsets, 1))


def summed(counts: Iterable[Shaped[np.ndarray, " _"]]) -> Shaped[np.ndarray, " most"]:
    """The sum of counts, also weighted ones, the shorter ones continued with zeros."""
    total = np.zeros(1, np.int64)
    for part in counts:
        most = max(len(total), len(part))
        total = np.pad(total, (0, most - len(total))) + np.pad(part, (0, most - len(part)))
    return total


def total(parts: Iterable[Counts]) -> Counts:
    """The counts of all parts together; labels that occur most come first."""
    parts = list(parts)
    empty, labels, left_out = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        empty.update(part.empty)
        labels.update(part.labels)
        left_out.update(part.left_out)
    return Counts(
        examples=sum(part.examples for part in parts),
        characters=sum(part.characters for part in parts),
        empty=dict(empty),
        labels=dict(labels.most_common()),
        too_long=sum(part.too_long for part in parts),
        content=fingerprint(*(part.content for part in parts)),
        long_characters=sum(part.long_characters for part in parts),
        long_tokens=sum(part.long_tokens for part in parts),
        left_out=dict(left_out),
    )
