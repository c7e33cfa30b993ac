"""Placing batches on the device before they are needed."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import numpy as np


class Streams(Protocol):
    """Batches without end, and the position after the newest one."""

    def __next__(self) -> dict[str, np.ndarray]: ...

    def get_state(self) -> dict[str, Any]: ...


Placed = tuple[dict[str, jax.Array], dict[str, Any]]


def place_ahead(streams: Streams, depth: int = 2) -> Generator[Placed]:
    """Yields (batch on the device, state of the streams after it), prepared by a thread.

    Up to `depth` batches are ready or in the making while the caller works. The state belongs to
    its batch, however far ahead the thread is: streams set to it go on with the next batch. What
    the thread raises is raised here, in place of the batch. Closing the generator (use
    `contextlib.closing`) ends the thread.
    """

    def place() -> Placed:
        batch = next(streams)
        return jax.device_put(batch), streams.get_state()

    # One worker: batches are made one after the other, in the order of their futures.
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="place_ahead")
    try:
        ahead = deque(executor.submit(place) for _ in range(depth))
        while True:
            placed = ahead.popleft().result()
            ahead.append(executor.submit(place))
            yield placed
    finally:
        executor.shutdown(cancel_futures=True)
