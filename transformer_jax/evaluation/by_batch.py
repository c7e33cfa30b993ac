"""Results of one batch after another, fetched from the devices while progress is shown."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from transformer_jax.process import progress


def fetch(
    what: str,
    compute: Callable[[Any, Int[np.ndarray, "B"]], Any],
    batches: Sequence[tuple[Any, Int[np.ndarray, "B"]]],
) -> list[Any]:
    """What `compute` makes of each batch and its examples' numbers (-1: none), on the host.

    A batch's results are fetched once the next batch is on its way, so that the devices never wait.

    what: what this is, for the line that shows how many examples are done.
    """
    counts = [int(np.sum(numbers >= 0)) for _, numbers in batches]
    computed = itertools.starmap(compute, batches)
    fetched = []
    with progress.bar(what, total=sum(counts), unit="examples") as advance:
        pairs = itertools.pairwise(itertools.chain(computed, [None]))
        for (result, _), count in zip(pairs, counts, strict=True):
            fetched.append(jax.device_get(result))
            advance(count)
    return fetched
