"""Results of one batch after another, fetched from the devices while progress is shown."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from transformer_jax.data.prepare.recipe import NumberedBatch
from transformer_jax.process import progress

# (a batch, the numbers of the examples in its rows) -> arrays on the devices
Compute = Callable[[Any, Int[np.ndarray, "B"]], Any]


def fetch(what: str, compute: Compute, batches: Sequence[NumberedBatch]) -> list[Any]:
    """What `compute` makes of each batch and its examples' numbers (-1: none), on the host.

    A batch's results are fetched once the next batch is on its way, so that the devices never wait.

    what: what this is, for the line that shows how many batches are done.
    """
    fetched, computed = [], itertools.starmap(compute, batches)
    with progress.bar(what, total=len(batches), unit="batches") as advance:
        for result, _ in itertools.pairwise(itertools.chain(computed, [None])):
            fetched.append(jax.device_get(result))
            advance(1)
    return fetched


def fetch_examples(what: str, compute: Compute, batches: Sequence[NumberedBatch]) -> list[Any]:
    """The rows of what `compute` makes, one an example, in the order of their numbers."""
    examples = {}
    pairs = fetch(what, lambda batch, numbers: (numbers, compute(batch, numbers)), batches)
    for numbers, arrays in pairs:
        for row in np.flatnonzero(numbers >= 0).tolist():
            examples[int(numbers[row])] = jax.tree.map(lambda array, row=row: array[row], arrays)
    return [examples[number] for number in range(len(examples))]
