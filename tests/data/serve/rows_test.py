from typing import Any

import grain
import numpy as np

from tests.data.numbered import LABELLED, PAIRS, TEXTS, assert_same
from transformer_jax.data.serve.rows import batched_rows, pad


def arrays_of(batch):
    return {name: np.array(values) for name, values in batch.items()}


def test_a_padded_row_is_one_example_with_its_segment_ids_and_positions():
    examples = [{"inputs": [5, 6, 1], "labels": [2, 0, 0]}, {"inputs": [7], "labels": [3]}]
    batch = pad(examples, LABELLED, {"inputs": 4, "labels": 4})
    expected = {
        "inputs": [[5, 6, 1, 0], [7, 0, 0, 0]],
        "inputs_segment_ids": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "inputs_positions": [[0, 1, 2, 0], [0, 0, 0, 0]],
        "labels": [[2, 0, 0, 0], [3, 0, 0, 0]],
    }
    assert_same(batch, arrays_of(expected))
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}


def test_each_column_is_padded_to_a_length_of_its_own_and_no_example_to_zeros():
    examples = [{"inputs": [5, 1], "targets": [8, 9, 1]}, {"inputs": (), "targets": ()}]
    batch = pad(examples, PAIRS, {"inputs": 2, "targets": 4})
    np.testing.assert_array_equal(batch["inputs"], [[5, 1], [0, 0]])
    np.testing.assert_array_equal(batch["targets"], [[8, 9, 1, 0], [0, 0, 0, 0]])
    assert not any(values[1].any() for values in batch.values())


def test_a_column_that_is_not_announced_has_segment_ids_and_positions_of_its_own():
    """The prompts of a language model are inputs, which its training lacks."""
    batch = pad([{"inputs": [2, 5]}], TEXTS, {"inputs": 3})
    assert set(batch) == {"inputs", "inputs_segment_ids", "inputs_positions"}


def packed_rows(examples, columns, lengths, **changes):
    source = grain.MapDataset.source(examples)
    settings: dict[str, Any] = dict(rows=2, packing=True, seed=0, draw=None, draw_seed=0)
    return list(batched_rows(source, columns, lengths, **(settings | changes)))


def test_packing_puts_examples_into_the_first_row_with_room_for_all_their_columns():
    examples = [
        {"inputs": np.array(inputs, np.int32), "labels": np.array(labels, np.int32)}
        for inputs, labels in [
            ([5, 6, 1], [2, 0, 0]),
            ([7, 8, 9, 1], [3, 0, 0, 0]),
            ([4, 1], [1, 0]),  # has room beside the first one alone
        ]
    ]
    (batch,) = packed_rows(examples, LABELLED, {"inputs": 5, "labels": 5})
    rows = {tuple(row): number for number, row in enumerate(batch["inputs"].tolist())}
    assert set(rows) == {(5, 6, 1, 4, 1), (7, 8, 9, 1, 0)}
    order = [rows[5, 6, 1, 4, 1], rows[7, 8, 9, 1, 0]]
    expected = {
        "inputs": [[5, 6, 1, 4, 1], [7, 8, 9, 1, 0]],
        "inputs_segment_ids": [[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]],
        "inputs_positions": [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]],
        "labels": [[2, 0, 0, 1, 0], [3, 0, 0, 0, 0]],
    }
    assert_same({name: values[order] for name, values in batch.items()}, arrays_of(expected))


def test_an_example_stays_out_of_a_row_where_one_of_its_columns_has_no_room():
    pairs = [([5, 1], [6, 7, 1]), ([8, 1], [9, 9, 1])]
    examples = [
        {"inputs": np.array(inputs, np.int32), "targets": np.array(targets, np.int32)}
        for inputs, targets in pairs
    ]
    (batch,) = packed_rows(examples, PAIRS, {"inputs": 9, "targets": 5})
    assert sorted(row[row > 0].tolist() for row in batch["inputs"]) == [[5, 1], [8, 1]]
    (batch,) = packed_rows(examples, PAIRS, {"inputs": 9, "targets": 6}, rows=1)
    np.testing.assert_array_equal(batch["targets"], [[6, 7, 1, 9, 9, 1]])
