import weakref

import numpy as np
import pytest

from tests.data.numbered import CASES, TEXTS, make_arrays, numbers
from transformer_jax.data.serve.batches import eval_batches


@pytest.mark.parametrize("n", [1, 16, 53])
@pytest.mark.parametrize("case", CASES)
def test_eval_batches_have_every_example_once_in_few_shapes(case, n):
    columns, draw = CASES[case]
    arrays = make_arrays(n, columns, longest=70)
    batches = eval_batches([arrays], columns, batch_size=8, draw=draw)
    assert len(batches) == -(-n // 8)
    indices = []
    for batch, index in batches:
        assert all(len(rows) == 8 for rows in batch.values())
        real = np.flatnonzero(index >= 0)
        assert numbers(batch, real, arrays) == index[real].tolist()
        assert not any(values[index < 0].any() for values in batch.values())
        indices += index[real].tolist()
    assert sorted(indices) == list(range(n))
    shapes = {tuple(batch[name].shape[1] for name in columns) for batch, _ in batches}
    lengths = {last for *_, last in shapes}
    assert len(shapes) == len(lengths)
    *_, offsets = arrays.offsets.values()
    assert lengths <= {8, 16, 24, 32, 48, 64, np.diff(offsets[:]).max()}


def test_a_batch_is_made_when_it_is_asked_for_and_not_kept():
    columns, draw = CASES["drawn"]
    batches = eval_batches([make_arrays(20, columns)], columns, batch_size=8, draw=draw)
    (batch, _), (again, _) = batches[0], batches[0]
    np.testing.assert_equal(batch, again)
    references = [weakref.ref(values) for values in batch.values()]
    del batch
    assert not any(one() is not None for one in references)


@pytest.mark.parametrize("most", [20, 90])
def test_prompts_of_many_lengths_have_few_shapes(most):
    for length in range(1, most + 1):
        # Alone in the last batch, beside padding
        rows = [{"targets": [4] * size} for size in (length, most, most)]
        _, (batch, _) = eval_batches([rows], TEXTS, batch_size=2, most=most)
        width = next(size for size in (8, 16, 24, 32, 48, 64, 96) if size >= length)
        assert batch["targets"].shape[1] == min(width, most)
