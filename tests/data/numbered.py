"""Token arrays whose examples bear numbers, and the way back: which examples a batch holds."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from transformer_jax.data.prepare.arrays import Counts, TokenArrays, lengths_of
from transformer_jax.data.prepare.recipe import Batch, Column, Draw
from transformer_jax.data.prepare.tokenizer import BOS_ID, EOS_ID, PAD_ID


@dataclasses.dataclass(frozen=True)
class Noise:
    """Draws a number from 1 to `most` for every token."""

    most: int

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Batch:
        real = batch["targets_segment_ids"] > 0
        noise = 1 + rng.random(real.shape) * self.most
        return batch | {"noise": np.where(real, noise, 0).astype(np.int32)}


Columns = Mapping[str, Column]
PAIRS: Columns = {"inputs": Column("source"), "targets": Column("target")}
TEXTS: Columns = {"targets": Column("target")}
LABELLED: Columns = {"inputs": Column("source"), "labels": Column("source", along="inputs")}
PATCHES: Columns = {
    "inputs": Column("source", shape=(3,), dtype="float32"),
    "grid": Column("source", along="inputs", shape=(2,)),
    "halves": Column("source", along="inputs", dtype="bfloat16"),
    "targets": Column("target", shape=(2, 2), dtype="uint8"),
}
# Each way in which columns can lie, with what is drawn for them.
CASES: dict[str, tuple[Columns, Draw | None]] = {
    "pairs": (PAIRS, None),
    "texts": (TEXTS, None),
    "labelled": (LABELLED, None),
    "patches": (PATCHES, None),
    "drawn": (TEXTS, Noise(999)),
}


def make_arrays(
    n: int, columns: Columns = PAIRS, *, shortest: int = 3, longest: int = 9, seed: int = 0
) -> TokenArrays:
    """n examples of random ids; in each column the second token of an example is 4 + its number.

    Where an array is at each place, all its numbers are that one.
    """
    draw = np.random.default_rng(seed)
    lengths: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        sizes = draw.integers(shortest, longest + 1, n)
        lengths[name] = lengths[column.along] if column.along else sizes

    def entries(lengths: np.ndarray, column: Column) -> np.ndarray:
        rows = [
            [BOS_ID, 4 + number, *draw.integers(4, 99, length - 3), EOS_ID]
            for number, length in enumerate(lengths)
        ]
        numbers = np.concatenate(rows).astype(column.dtype)
        return numbers.repeat(math.prod(column.shape)).reshape(-1, *column.shape)

    offsets = {name: np.cumsum([0, *lengths[name]]) for name in columns}
    return TokenArrays(
        columns={name: entries(lengths[name], column) for name, column in columns.items()},
        offsets=offsets,
        lengths={name: lengths_of(ends) for name, ends in offsets.items()},
        ids={},
        counts=Counts(examples=0, characters=0, empty={}, labels={}, too_long=0, content=""),
        fingerprint=f"{n}, {list(columns)}, {shortest}, {longest}, {seed}",
        folder=Path(),
    )


def unpack(batch: Batch, row: int, columns: Iterable[str]) -> list[dict[str, list[int]]]:
    """The examples of a row, told apart by segment ids; positions and padding are checked.

    A column without segment ids of its own has those of the first column.
    """
    first, *others = columns
    leaders = {name: name if f"{name}_segment_ids" in batch else first for name in (first, *others)}
    segments = {name: batch[f"{leader}_segment_ids"][row] for name, leader in leaders.items()}
    count = int(segments[first].max())
    examples: list[dict[str, list[int]]] = [{} for _ in range(count)]
    for name, leader in leaders.items():
        assert segments[name].max() == count
        for segment, example in enumerate(examples, 1):
            cells = np.flatnonzero(segments[name] == segment)
            positions = batch[f"{leader}_positions"][row, cells]
            np.testing.assert_array_equal(np.diff(cells), 1)
            np.testing.assert_array_equal(positions, range(len(cells)))
            example[name] = batch[name][row, cells].tolist()
        padding = segments[name] == 0
        assert (batch[name][row, padding] == PAD_ID).all()
        assert (batch[f"{leader}_positions"][row, padding] == 0).all()
    return examples


def numbers(batch: Batch, rows: Iterable[int], arrays: TokenArrays) -> list[int]:
    """The numbers of the examples in the rows; each is compared with the arrays token by token."""
    indices = []
    for row in rows:
        for example in unpack(batch, row, arrays.columns):
            number = int(np.ravel(next(iter(example.values()))[1])[0]) - 4
            assert {name: tokens.tolist() for name, tokens in arrays[number].items()} == example
            indices.append(number)
    return indices
