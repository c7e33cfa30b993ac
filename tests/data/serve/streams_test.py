import collections
import dataclasses
import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.data.numbered import CASES, PAIRS, TEXTS, Noise, make_arrays, numbers
from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.serve import mixture, streams
from transformer_jax.data.serve.streams import shuffled_streams


@pytest.fixture(autouse=True)
def few_bins(monkeypatch):
    monkeypatch.setattr(streams, "PACKING_BINS", 8)  # two batches: small tests see many refills


def make_streams(*sets, columns=PAIRS, packing, **changes):
    settings: dict[str, Any] = dict(
        batch_size=8,
        streams=2,
        lengths=dict.fromkeys(columns, 20 if packing else 9),
        seed=3,
    )
    return shuffled_streams(sets, columns, packing=packing, **(settings | changes))


def padded_order(arrays, streams, batches):
    """The shuffled order: with one example a row, the streams' rows are its examples in turn."""
    dealt = [[] for _ in range(2)]
    for batch in itertools.islice(streams, batches):
        for stream in range(2):
            dealt[stream] += numbers(batch, range(4 * stream, 4 * stream + 4), arrays)
    return [number for pair in zip(*dealt, strict=True) for number in pair]


# Multiples neither of the streams nor of the batch; Grain does not shuffle the few.
@pytest.mark.parametrize("n", [21, mixture.FEW + 5])
def test_every_epoch_has_every_example_once_in_a_new_order(n):
    arrays, batches = make_arrays(n), 3 * n // 8 + 1
    stream = make_streams(arrays, packing=False)
    order = padded_order(arrays, stream, batches)
    assert stream.passes(stream.get_state()) == pytest.approx(8 * batches / n)
    epochs = [order[start : start + n] for start in range(0, 3 * n, n)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = padded_order(arrays, make_streams(arrays, packing=False), batches)
    other = padded_order(arrays, make_streams(arrays, packing=False, seed=4), batches)
    assert again == order != other


@pytest.mark.parametrize("case", CASES)
def test_packed_rows_hold_the_examples_of_the_shuffled_order(case):
    """So every epoch has every example once, whichever columns it has."""
    columns, draw = CASES[case]
    arrays = make_arrays(120, columns)
    order = padded_order(arrays, make_streams(arrays, columns=columns, packing=False), batches=100)
    packed = make_streams(arrays, columns=columns, packing=True, draw=draw)
    counts = [collections.Counter(), collections.Counter()]
    for _ in range(4):  # a stream empties its bins after PACKING_BINS rows, four to a batch
        for batch in itertools.islice(packed, streams.PACKING_BINS // 4):
            for stream in range(2):
                counts[stream].update(numbers(batch, range(4 * stream, 4 * stream + 4), arrays))
        for stream in range(2):
            assert counts[stream] == collections.Counter(order[stream::2][: counts[stream].total()])
    assert min(count.total() for count in counts) > 4 * streams.PACKING_BINS  # several to a row


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Draws an order for the tokens of every example."""

    def __call__(self, example, rng):
        return {"targets": rng.permutation(example["targets"])}


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("case", [*CASES, "corrupted", "mixed"])
def test_restored_streams_continue_exactly_from_every_point(case, packing):
    columns, draw = CASES.get(case, (TEXTS, None))
    changes = {"draw": draw, "corrupt": Shuffled() if case == "corrupted" else None}
    sets = [make_arrays(90, columns)]
    if case == "mixed":  # of each there are several epochs
        sets = [make_arrays(n, columns, seed=n) for n in (20, 4, 10)]
        changes["weights"] = [5, 1, 2]

    def make():
        return make_streams(*sets, columns=columns, packing=packing, **changes)

    stream = make()
    states, batches = [], []
    for _ in range(6):
        states.append(json.dumps(stream.get_state()))
        batches.append(next(stream))
    states.append(json.dumps(stream.get_state()))
    used = make()
    for step in [*range(6), 3]:
        used.set_state(json.loads(states[step]))
        assert json.dumps(used.get_state()) == states[step]
        for later in range(step, min(step + 3, 6)):
            np.testing.assert_equal(next(used), batches[later])
            assert json.dumps(used.get_state()) == states[later + 1]
    if case == "mixed":
        drawn = np.sum([state["drawn"] for state in used.get_state().values()], axis=0)
        assert drawn.shape == (3,) and drawn.sum() >= 6 * 8  # at least one a row


def test_draws_differ_between_epochs_streams_and_seeds():
    """With eight examples and eight rows, one example each, every batch is an epoch."""
    arrays = make_arrays(8, TEXTS, shortest=9)

    def epochs(**changes):
        draw = Noise(10**6)
        stream = make_streams(arrays, columns=TEXTS, packing=False, draw=draw, **changes)
        rows = []
        for batch in itertools.islice(stream, 4):
            order = numbers(batch, range(8), arrays)
            assert sorted(order) == list(range(8))
            rows.append(batch["noise"][np.argsort(order)])
        return np.array(rows)

    noise = epochs()
    assert np.unique(noise).size > 0.99 * noise.size  # no epoch and no stream repeats another
    np.testing.assert_array_equal(noise, epochs())
    assert (noise != epochs(seed=4)).any(axis=-1).all()


@pytest.mark.parametrize("packing", [True, False])
def test_resuming_reads_no_more_at_a_late_step_than_at_an_early_one(packing):
    reads = []

    class Counting(TokenArrays):
        def __getitem__(self, index):
            reads.append(index)
            return super().__getitem__(index)

    arrays = Counting(**vars(make_arrays(90)))
    stream = make_streams(arrays, packing=packing)
    next(stream)
    first = len(reads)
    for _ in range(20):
        next(stream)
    state = stream.get_state()
    resumed = make_streams(arrays, packing=packing)
    reads.clear()
    resumed.set_state(state)
    next(resumed)
    assert 0 < len(reads) <= 2 * first


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_any_number_of_hosts_reads_the_rows_that_one_alone_would_and_continues(
    packing, seed, caplog
):
    draw = np.random.default_rng(seed)
    arrays = make_arrays(60)
    settings: dict[str, Any] = dict(packing=packing, batch_size=8, streams=4)
    alone = make_streams(arrays, **settings)
    states = alone.get_state()
    for hosts in (3, 1, 2):
        # Any device may hold any row, and two devices the same one.
        first, second = draw.permuted(np.arange(8) % hosts), draw.integers(hosts, size=8)
        wanted = [np.flatnonzero((first == host) | (second == host)) for host in range(hosts)]
        read = []
        for some in wanted:
            caplog.clear()
            read.append(make_streams(arrays, **settings, rows=some.tolist()))
            # Pieces of two rows that are only partly wanted; of one row each is whole.
            partly = np.diff(np.isin(np.arange(8), some).reshape(4, 2)).any()
            assert ("With data.streams=8 each" in caplog.text) == partly
        for stream in read:
            stream.set_state(json.loads(json.dumps(states)))
        for _ in range(5):
            batch = next(alone)
            for stream, some in zip(read, wanted, strict=True):
                own_batch = next(stream)
                assert own_batch.keys() == batch.keys()
                for name, values in own_batch.items():
                    assert values.shape == batch[name].shape
                    np.testing.assert_array_equal(values[some], batch[name][some])
        positions = [stream.get_state() for stream in read]
        for state, some in zip(positions, wanted, strict=True):
            assert set(state) == {str(row // 2) for row in some}  # and no other stream was read
        states = dict(collections.ChainMap(*positions))
        assert states == alone.get_state()


def test_the_fingerprint_of_streams_covers_what_decides_the_batches():
    one, other, pairs = make_arrays(10, TEXTS), make_arrays(11, TEXTS), make_arrays(10)
    make = functools.partial(make_streams, columns=TEXTS, packing=True)
    make_pairs = functools.partial(make_streams, pairs, packing=True)
    variants = [
        make(one),
        make(one, batch_size=4),
        make(one, streams=4),
        make(one, packing=False, lengths={"targets": 20}),
        make(one, lengths={"targets": 21}),
        make_pairs(),
        make_pairs(lengths={"inputs": 21, "targets": 20}),
        make_pairs(lengths={"inputs": 20, "targets": 21}),
        make(one, seed=1),
        make(one, draw=Noise(9)),
        make(one, draw=Noise(8)),
        make(other),
        make(one, other, weights=[1, 1]),
        make(other, one, weights=[1, 1]),
        make(one, other, weights=[1, 2]),
    ]
    assert len({stream.fingerprint for stream in variants}) == len(variants)
    assert make(one).fingerprint == variants[0].fingerprint
