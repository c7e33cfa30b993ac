"""When an entry counts: the rule of significance, of losses of seeds that chose nothing.

As modded-nanogpt's track 3 has it, with the deviation, the slope and the target of this model: a
one-sided z-test at p < 0.001, of a deviation that is held fixed, so that a lucky entry of few seeds
cannot bring a small one of its own.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

TARGET = 1.900  # nats a character, of the validation split
DEVIATION = 0.0114  # of the final losses of seeds, pooled over the first 19 entries of eight each
SLOPE = 0.043 / 100  # nats a step, that the baseline gains by being longer, near the target
NEAR = 0.05  # nats from the target, as far as that slope was measured
QUANTILE = 3.09  # of the normal distribution, at 0.001
MARGIN = QUANTILE * DEVIATION  # nats, of a single seed


class Result(NamedTuple):
    """Final validation losses of an entry, one a seed; infinite where training diverged."""

    steps: int
    losses: Sequence[float]

    @property
    def loss(self) -> float:
        """The mean over seeds, of which none is left out."""
        return float(np.mean(self.losses))

    @property
    def passes(self) -> bool:
        """Whether the target is reached: (target - mean) sqrt(n) >= 3.09 deviations."""
        return (TARGET - self.loss) * math.sqrt(len(self.losses)) >= MARGIN

    @property
    def steps_to_target(self) -> float | None:
        """Where the mean loss would be the target, by the slope; None where that is too far off."""
        if not abs(self.loss - TARGET) <= NEAR:
            return None
        return self.steps + (self.loss - TARGET) / SLOPE


def lead(entry: Result, other: Result) -> float:
    """By how many deviations of a difference of means an entry is ahead of another.

    Nats at equal steps: what the other's longer training is worth, by the slope, comes on top.
    """
    if not math.isfinite(entry.loss) or not math.isfinite(other.loss):
        return (
            float(np.sign(other.loss - entry.loss)) * math.inf if entry.loss != other.loss else 0.0
        )
    gain = other.loss - entry.loss + SLOPE * (other.steps - entry.steps)
    return gain / (DEVIATION * math.sqrt(1 / len(entry.losses) + 1 / len(other.losses)))


def verdict(entry: Result, other: Result) -> str:
    """ "ahead" or "behind" where that is beyond 3.09 deviations, else "alike"."""
    ahead = lead(entry, other)
    return "ahead" if ahead >= QUANTILE else "behind" if ahead <= -QUANTILE else "alike"
