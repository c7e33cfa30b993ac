import numpy as np
import pytest

from tests.data.numbered import (
    CASES,
    LABELLED,
    PAIRS,
    TEXTS,
    Noise,
    assert_same,
    make_arrays,
    numbers,
)
from transformer_jax.data.serve.batches import eval_batches, pad, prompt_batches


@pytest.mark.parametrize("n", [1, 16, 53])
@pytest.mark.parametrize("case", CASES)
def test_eval_batches_have_every_example_once_in_few_shapes(case, n):
    columns, draw = CASES[case]
    arrays = make_arrays(n, columns, longest=70)
    batches = eval_batches([arrays], columns, batch_size=8, draw=draw)
    assert len(batches) == -(-n // 8)
    seen = []
    for batch, index in batches:
        assert all(len(rows) == 8 for rows in batch.values())
        real = np.flatnonzero(index >= 0)
        assert numbers(batch, real, arrays) == index[real].tolist()
        assert not any(values[index < 0].any() for values in batch.values())
        seen += index[real].tolist()
    assert sorted(seen) == list(range(n))
    shapes = {tuple(batch[name].shape[1] for name in columns) for batch, _ in batches}
    lengths = {last for *_, last in shapes}
    assert len(shapes) == len(lengths)
    *_, offsets = arrays.offsets.values()
    assert lengths <= {8, 16, 24, 32, 48, 64, np.diff(offsets[:]).max()}


def test_draws_of_an_evaluation_belong_to_the_examples():
    arrays = make_arrays(21, TEXTS, shortest=30, longest=40)

    def drawn(batch_size):
        batches = eval_batches([arrays], TEXTS, batch_size=batch_size, draw=Noise(10**6))
        return {
            number: tuple(batch["noise"][row][batch["noise"][row] > 0])
            for batch, index in batches
            for row, number in enumerate(index)
            if number >= 0
        }

    assert drawn(8) == drawn(5)  # rows of other widths, in other company
    assert len(set(drawn(8).values())) == 21


@pytest.mark.parametrize("columns", [TEXTS, LABELLED])
def test_prompt_batches_are_eval_batches_of_lists(columns):
    arrays = make_arrays(21, columns, longest=70)
    rows = {name: [arrays[i][name].tolist() for i in range(len(arrays))] for name in columns}
    longest = max(len(ids) for ids in next(iter(rows.values())))
    pairs = zip(
        prompt_batches(rows, columns, batch_size=8, max_length=longest),
        eval_batches([arrays], columns, batch_size=8),
        strict=True,
    )
    for (batch, index), (expected, expected_index) in pairs:
        assert_same(batch, expected)
        np.testing.assert_array_equal(index, expected_index)


def test_no_prompts_make_no_batches():
    rows = {"inputs": [], "labels": []}
    assert prompt_batches(rows, LABELLED, batch_size=8, max_length=70) == []


def test_prompts_of_many_lengths_have_few_shapes():
    def width(length):
        rows = {"inputs": [[4] * length]}
        ((batch, _),) = prompt_batches(rows, TEXTS, batch_size=1, max_length=20)
        return batch["inputs"].shape[1]

    assert [width(length) for length in (1, 8, 9, 16, 17, 20)] == [8, 8, 16, 16, 20, 20]


def test_a_padded_row_is_one_example_with_its_segment_ids_and_positions():
    examples = [{"inputs": [5, 6, 1], "labels": [2, 0, 0]}, {"inputs": [7], "labels": [3]}]
    batch = pad(examples, LABELLED, {"inputs": 4, "labels": 4})
    expected = {
        "inputs": [[5, 6, 1, 0], [7, 0, 0, 0]],
        "inputs_segment_ids": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "inputs_positions": [[0, 1, 2, 0], [0, 0, 0, 0]],
        "labels": [[2, 0, 0, 0], [3, 0, 0, 0]],
    }
    assert_same(batch, expected)
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
