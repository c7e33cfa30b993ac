"""A mixture draws each set as often as its weight says, and each example once an epoch."""

import collections
import itertools

import numpy as np
import pytest

from tests.data.numbered import make_arrays
from transformer_jax.data.serve import mixture
from transformer_jax.data.serve.mixture import Mixture, endless

SIZES = (150, 40, 300)
WEIGHTS = (5.0, 1.0, 2.5)


def mixed(seed=0, weights=WEIGHTS):
    """A mixture of sets whose examples are told apart by their lengths and numbers."""
    longest = zip(SIZES, (3, 5, 7), strict=True)
    sets = [make_arrays(n, shortest=length, longest=length) for n, length in longest]
    return Mixture(sets, weights, seed), sets


def which(example):
    """The set and the number of an example."""
    tokens = example["inputs"]
    return (3, 5, 7).index(len(tokens)), int(tokens[1]) - 4


def test_each_block_has_the_shares_of_the_weights(monkeypatch):
    monkeypatch.setattr(mixture, "_BLOCK", 85)
    order, _ = mixed()
    for block in range(3):
        counts = collections.Counter(which(order[85 * block + n])[0] for n in range(85))
        assert counts == {0: 50, 1: 10, 2: 25}
    # Where they cannot be exact, none is off by one or more.
    order, _ = mixed(weights=(1, 1, 1))
    assert sorted(order.counts) == [28, 28, 29]


def test_each_set_has_its_own_epochs_in_its_own_order():
    order, sets = mixed()
    orders: list[list[int]] = [[] for _ in SIZES]
    for n in range(1500):
        number, example = which(order[n])
        orders[number].append(example)
    alone = endless(sets[0], 0)
    assert orders[0] == [which(alone[n])[1] for n in range(len(orders[0]))]
    for size, examples in zip(SIZES, orders, strict=True):
        for start in range(0, len(examples) - size, size):
            assert sorted(examples[start : start + size]) == list(range(size))


def test_sets_as_long_as_each_other_do_not_go_side_by_side():
    """As both directions of one parallel corpus would."""
    order = Mixture([make_arrays(50, shortest=n, longest=n) for n in (3, 5)], (1, 1), 0)
    drawn = [which(order[n]) for n in range(200)]
    first, second = ([one for number, one in drawn if number == each][:50] for each in (0, 1))
    assert sorted(first) == sorted(second) and first != second


def test_the_order_depends_on_the_seed_alone():
    first, again, other = (mixed(seed)[0] for seed in (0, 0, 1))
    rows = [[which(order[n]) for n in range(200)] for order in (first, again, other)]
    assert rows[0] == rows[1] != rows[2]


def test_what_a_stream_has_drawn_is_counted_without_drawing(monkeypatch):
    monkeypatch.setattr(mixture, "_BLOCK", 60)
    order, _ = mixed()
    sets = [which(order[n])[0] for n in range(8 * 130)]
    for streams in (1, 3, 8):
        for stream, examples in itertools.product(range(streams), (0, 1, 59, 60, 61, 130)):
            counted = np.bincount(sets[stream::streams][:examples], minlength=3)
            assert order.counts_by_set(stream, streams, examples).tolist() == counted.tolist()


def test_a_set_that_would_never_be_drawn_is_refused():
    with pytest.raises(ValueError, match="row 1 has 1e-05 of all weights; .* is 0.0001$"):
        mixed(weights=(0.5, 1e-5, 0.49999))


@pytest.mark.parametrize("weight", [0, -1, float("inf")])
def test_a_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(ValueError, match=f"the weight {weight} of row 1 is not above 0"):
        mixed(weights=(0.5, weight, 1))
