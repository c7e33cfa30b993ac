"""Batches to score and to decode: every example once, sorted by length into a few fixed shapes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.prepare.recipe import Batch, Column, Corrupt, Draw, NumberedBatch
from transformer_jax.data.prepare.tokenizer import PAD_ID


class Batches(Sequence[NumberedBatch]):
    """Batches of which each is made when it is asked for: so memory holds no more than are in use.

    make: the number of a batch, from 0 to count - 1 -> the batch, and its examples' numbers.
    """

    def __init__(self, count: int, make: Callable[[int], NumberedBatch]):
        self._numbers, self._make = range(count), make

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        return self._make(self._numbers[number])


def eval_batches(
    sets: Sequence[Sequence[Mapping[str, Any]] | TokenArrays],
    columns: Mapping[str, Column],
    *,
    batch_size: int,
    most: int | None = None,
    draw: Draw | None = None,
    corrupt: Corrupt | None = None,
) -> Batches:
    """Every example once, one a row, sorted by length (longest first) into few shapes.

    What is drawn, as masks, is drawn by the example's number: the same in every evaluation.

    Args:
        sets: the examples, numbered through.
        most: places of a row at most; None: of the longest example.

    Returns:
        Pairs of a batch of batch_size rows and the number of the example in each row; -1 marks a
        row of padding, which fills up the last batch. Lengths of the last column are rounded up to
        8, 16, 24, 32, 48, 64, 96 ...; batches that are equal in it are equal in all.
    """
    places = [(arrays, number) for arrays in sets for number in range(len(arrays))]

    def example(number: int) -> Mapping[str, Any]:
        arrays, index = places[number]
        return corrupt(arrays[index], np.random.default_rng(number)) if corrupt else arrays[index]

    sizes = [[len(row[name]) for name in columns] for row in map(example, range(len(places)))]
    by_column = np.array(sizes, np.int64).reshape(len(places), len(columns)).T
    lengths = dict(zip(columns, by_column, strict=True))
    order = np.lexsort([-lengths[name] for name in columns])
    missing = -len(order) % batch_size
    groups = np.pad(order, (0, missing), constant_values=-1).reshape(-1, batch_size)
    shapes = [
        [_bucket(lengths[name], group, most or int(lengths[name].max())) for name in columns]
        for group in groups
    ]
    widest: dict[int, list[int]] = {}
    for shape in shapes:
        *_, last = shape
        widest[last] = list(map(max, shape, widest.get(last, shape)))

    def make(number: int) -> NumberedBatch:
        group, (*_, last) = groups[number], shapes[number]
        rows = [example(i) if i >= 0 else dict.fromkeys(columns, ()) for i in group.tolist()]
        batch = pad(rows, columns, dict(zip(columns, widest[last], strict=True)))
        return (batch if draw is None else _drawn_by_row(batch, group, draw)), group

    return Batches(len(groups), make)


def _drawn_by_row(batch: Batch, index: Int64[np.ndarray, " B"], draw: Draw) -> Batch:
    rows = [
        draw({name: values[row] for name, values in batch.items()}, np.random.default_rng(seed))
        for row, seed in enumerate(index + 1)  # a seed must not be negative
    ]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _bucket(lengths: Int64[np.ndarray, " n"], group: Int64[np.ndarray, " B"], most: int) -> int:
    """The longest length of the group, rounded up to 2^k or 3 * 2^k, at least 8, at most `most`.

    So no row is longer than the limits of the data.
    """
    longest = int(lengths[group[group >= 0]].max())
    power = max(8, 1 << (longest - 1).bit_length())
    three_quarters = power * 3 // 4
    rounded = three_quarters if power > 16 and longest <= three_quarters else power
    return min(rounded, most)


def pad(
    examples: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], lengths: Mapping[str, int]
) -> Batch:
    """One example a row, padded to `lengths`, with segment ids (1) and positions.

    columns: of those in `lengths` that are missing here, a row holds token ids.
    """
    batch = {}
    for name, length in lengths.items():
        column = columns.get(name, Column("source"))
        rows = [column.array(example[name]) for example in examples]
        real = np.arange(length) < np.array([len(row) for row in rows])[:, None]
        values = np.full((*real.shape, *column.shape), PAD_ID, column.dtype)
        values[real] = np.concatenate(rows)
        positions = np.where(real, np.arange(length), 0).astype(np.int32)
        parts = (values, real.astype(np.int32), positions)
        batch |= zip(column.keys(name), parts, strict=False)
    return batch
