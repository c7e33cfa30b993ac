"""Results are fetched one batch behind the devices, and counted once they are there."""

import contextlib
from typing import Any

import jax
import numpy as np

from transformer_jax.evaluation.by_batch import fetch
from transformer_jax.process import progress


def test_a_batch_is_fetched_once_the_next_is_on_its_way(monkeypatch):
    events = []

    def compute(batch, numbers):
        events.append(f"compute {batch}")
        return batch

    def device_get(batch):
        events.append(f"fetch {batch}")
        return batch + 100

    @contextlib.contextmanager
    def bar(what, *, total, unit):
        events.append(total)
        yield events.append

    monkeypatch.setattr(jax, "device_get", device_get)
    monkeypatch.setattr(progress, "bar", bar)
    batches: Any = [(n, np.array([-1, n, -1, n][: n + 2])) for n in range(3)]
    assert fetch("Scoring", compute, batches) == [100, 101, 102]
    assert events == [
        4,
        "compute 0",
        "compute 1",
        "fetch 0",
        1,
        "compute 2",
        "fetch 1",
        1,
        "fetch 2",
        2,
    ]
    assert fetch("Scoring", compute, []) == []
