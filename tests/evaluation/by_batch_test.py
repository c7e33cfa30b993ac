"""Results are fetched one batch behind the devices, and counted once they are there."""

import contextlib
from typing import Any

import numpy as np

from transformer_jax.evaluation.by_batch import fetch
from transformer_jax.process import progress


def test_a_batch_is_fetched_once_the_next_is_on_its_way(monkeypatch):
    events = []

    class Result:  # in the place of an array on a device
        def __init__(self, batch):
            self.batch = batch
            events.append(f"compute {batch}")

        def __array__(self):
            events.append(f"fetch {self.batch}")
            return np.array(self.batch + 100)

    @contextlib.contextmanager
    def bar(what, *, total, unit):
        events.append(f"{total} {unit}")
        yield lambda count: events.append(f"count {count}")

    monkeypatch.setattr(progress, "bar", bar)
    batches: Any = [(n, np.array([-1, n, -1, n][: n + 2])) for n in range(3)]
    outputs = fetch("Scoring", lambda batch, numbers: Result(batch), batches)
    assert outputs == [100, 101, 102]
    order = (
        "3 batches, compute 0, compute 1, fetch 0, count 1, compute 2, fetch 1, count 1, fetch 2"
    )
    assert ", ".join(events) == f"{order}, count 1"
    assert fetch("Scoring", lambda batch, numbers: Result(batch), []) == []
