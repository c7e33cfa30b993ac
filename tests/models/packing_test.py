"""Packing and padding change nothing."""

import functools

import numpy as np
import pytest

from tests.models import reference, tiny

# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

# A stack of each kind, and every place of a norm, in less time.
SOME = ["-".join(turn) for turn in tiny.TURNS[:6] + tiny.TURNS[10:14]] + list(tiny.RECURRENT)


# Every scheme, and every row of the recurrent models
ALL = tiny.EVERY_SCHEME | tiny.RECURRENT


def make(name):
    """Random parameters, and batch -> logits of each of its examples."""
    config = ALL[name]
    params, apply = tiny.random_parameters(config), tiny.apply_function(config)

    def logits(batch):
        return reference.by_example(batch, tiny.side_of_logits(config), apply(params, batch))

    return logits


@pytest.mark.parametrize("name", ALL)
def test_packed_equals_unpacked(name):
    logits = make(name)
    pairs = tiny.sentences((4, 3), (3, 4), (2, 1), (5, 3), (2, 4), (2, 1))
    packed = tiny.pack([pairs[:3], pairs[3:], []])
    alone = [tiny.pack([[a], [b], []]) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    each = [example for batch in alone for example in logits(batch)]
    for a, b in zip(logits(packed), each, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("name", SOME)
def test_padding_does_not_exist(name):
    """What stands in padded slots changes no bit, and more padding nothing but rounding."""
    logits = make(name)
    batch = tiny.packed_batch()
    expected = logits(batch)
    other = dict(batch)
    for name in ("inputs", "targets"):
        other[name] = np.where(batch[f"{name}_segment_ids"] > 0, batch[name], 7)
    for a, b in zip(expected, logits(other), strict=True):
        np.testing.assert_array_equal(a, b)
    longer = {k: np.pad(v, ((0, 1), (0, 3))) for k, v in batch.items()}
    for a, b in zip(expected, logits(longer), strict=True):
        assert_close(a, b)
