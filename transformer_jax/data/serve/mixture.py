"""The endless order of training examples: of one set, or of several that are mixed by weight."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np
from jaxtyping import Int64

from transformer_jax.data.prepare.arrays import TokenArrays

# Below so many examples Grain takes a millisecond and more to shuffle each of them: of two, 25 ms.
FEW = 128
_BLOCK = 10_000  # places of the order among which each set has its share


def counts_of(weights: Sequence[float]) -> Int64[np.ndarray, " sets"]:
    """How many of each block of the order are of each set.

    Raises ValueError where a weight is not above 0, or less than a ten-thousandth of all.
    """
    for number, weight in enumerate(weights):
        if not 0 < weight < math.inf:
            raise ValueError(f"the weight {weight} of row {number} is not above 0")
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    counts = np.floor(shares * _BLOCK).astype(np.int64)
    largest = np.argsort(counts - shares * _BLOCK, kind="stable")
    counts[largest[: _BLOCK - counts.sum()]] += 1
    if not counts.all():
        number = int(np.argmin(counts))
        raise ValueError(
            f"row {number} has {shares[number]:.2g} of all weights; the least that can be drawn "
            f"is {1 / _BLOCK:g}"
        )
    return counts


class Mixture:
    """An endless order in which each set has a share of the examples, and its own epochs.

    Attributes:
        counts: how many of each block of the order are of each set.
    """

    counts: Int64[np.ndarray, " sets"]

    def __init__(self, sets: Sequence[TokenArrays], weights: Sequence[float], seed: int):
        """weights: of the sets, in any unit. Raises as `counts_of`."""
        self.counts = counts_of(weights)
        # Sets as long as each other would have one order by one seed: both sides of what two parts
        # make of one file would come together in every epoch.
        others = (np.random.SeedSequence([seed, number]) for number in range(1, len(sets)))
        seeds = [seed, *(int(other.generate_state(1)[0]) for other in others)]
        self._orders = [endless(one, of_set) for one, of_set in zip(sets, seeds, strict=True)]
        rng = np.random.default_rng(seed)
        self._set = rng.permutation(np.repeat(np.arange(len(sets)), self.counts))
        one_hot = self._set[:, None] == np.arange(len(sets))
        self._before = np.concatenate([np.zeros_like(one_hot[:1], int), np.cumsum(one_hot, axis=0)])

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        block, place = divmod(index, _BLOCK)
        number = self._set[place]
        return self._orders[number][int(block * self.counts[number] + self._before[place, number])]

    def counts_by_set(self, stream: int, streams: int, examples: int) -> Int64[np.ndarray, " sets"]:
        """How many of each set are among the first examples of a stream."""
        places = (stream + streams * np.arange(_BLOCK)) % _BLOCK  # the pattern of a stream repeats
        rounds, rest = divmod(examples, _BLOCK)
        counts = np.bincount(self._set[places], minlength=len(self.counts))
        return rounds * counts + np.bincount(self._set[places[:rest]], minlength=len(self.counts))


def endless(arrays: TokenArrays, seed: int) -> grain.MapDataset:
    """The examples of one set without end, each once an epoch, in a new order every epoch."""
    if len(arrays) < FEW:
        return grain.MapDataset.source(_Reshuffled(arrays, seed))
    return grain.MapDataset.source(arrays).seed(seed).shuffle().repeat()


def position(state: Mapping[str, Any]) -> int:
    """How many examples (of contiguous text: batches) a stream has read, by its state."""
    for name in ("next_index", "batches"):
        if name in state:
            return state[name]
    return position(state["parent"])


class _Reshuffled:
    """A few examples without end, each once an epoch, in a new order every epoch."""

    def __init__(self, arrays: TokenArrays, seed: int):
        self._arrays = arrays
        self._seed = seed

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        epoch, place = divmod(index, len(self._arrays))
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._arrays))
        return self._arrays[order[place]]
