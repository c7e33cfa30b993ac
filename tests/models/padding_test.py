"""Padding changes nothing. That packing does not, shapes_test and visibility_test see."""

import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.tiny import assert_close

# A stack of each kind, and every place of a norm, in less time.
SOME = ["-".join(turn) for turn in tiny.TURNS[:6] + tiny.TURNS[10:14]] + list(tiny.RECURRENT)


@pytest.mark.parametrize("name", SOME)
def test_padding_does_not_exist(name):
    """What stands in padded slots changes no bit, and more padding nothing but rounding."""
    config, batch = (tiny.EVERY_SCHEME | tiny.RECURRENT)[name], tiny.packed_batch()
    params, apply = tiny.random_parameters(config), tiny.apply_function(config)

    def logits(batch):
        return reference.by_example(batch, tiny.side_of_logits(config), apply(params, batch))

    expected = logits(batch)
    other = dict(batch)
    for name in ("inputs", "targets"):
        other[name] = np.where(batch[f"{name}_segment_ids"] > 0, batch[name], 7)
    for a, b in zip(expected, logits(other), strict=True):
        np.testing.assert_array_equal(a, b)
    longer = {k: np.pad(v, ((0, 1), (0, 3))) for k, v in batch.items()}
    for a, b in zip(expected, logits(longer), strict=True):
        assert_close(a, b)
