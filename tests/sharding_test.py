"""The thread that places batches ahead: order, states, depth, errors and its end."""

import contextlib
import itertools
import threading

import jax
import numpy as np
import pytest

from transformer_jax.sharding import place_ahead


class Counter:
    """Batches 0, 1, 2, ...; fails in place of batch `fails_at`."""

    def __init__(self, fails_at=None):
        self.count = 0
        self.fails_at = fails_at

    def __next__(self):
        if self.count == self.fails_at:
            raise OSError("the disk is gone")
        self.count += 1
        return {"inputs": np.full((2, 3), self.count - 1, np.int32)}

    def get_state(self):
        return {"0": {"next": self.count}}


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("place_ahead")}


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_come_in_order_with_the_state_after_each(depth):
    with contextlib.closing(place_ahead(Counter(), depth)) as batches:
        for n, (batch, state) in enumerate(itertools.islice(batches, 10)):
            assert isinstance(batch["inputs"], jax.Array)
            np.testing.assert_array_equal(batch["inputs"], np.full((2, 3), n))
            assert state == {"0": {"next": n + 1}}


def test_the_next_batches_are_made_while_the_caller_works():
    streams = Counter()
    made = threading.Event()
    get_state = streams.get_state

    def watch():
        if streams.count == 4:
            made.set()
        return get_state()

    streams.get_state = watch
    with contextlib.closing(place_ahead(streams, depth=3)) as batches:
        next(batches)
        # Batches 1 to 3 (so the count reaches 4) need no further call.
        assert made.wait(timeout=30)
    assert streams.count == 4


def test_an_exception_of_the_thread_arrives_in_place_of_its_batch():
    with contextlib.closing(place_ahead(Counter(fails_at=3), depth=2)) as batches:
        first = [int(batch["inputs"][0, 0]) for batch, _ in itertools.islice(batches, 3)]
        assert first == [0, 1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
    assert not threads()


def test_closing_ends_the_thread():
    batches = place_ahead(Counter(), depth=2)
    next(batches)
    assert threads()
    batches.close()
    assert not threads()
