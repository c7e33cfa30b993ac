"""Fits of losses over parameters and tokens, of which what no model can do better is taken off."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LEAST_SIZES = 4  # of a budget
_LEAST_BUDGETS = 3


class Size(NamedTuple):
    """parameters, FLOPs a token, and {tokens: excess loss} of a size of the model."""

    parameters: float
    flops: float
    excess: Mapping[int, float]


def best_sizes(sizes: Sequence[Size]) -> dict[float, float]:
    """{FLOPs: parameters of least loss}, of budgets half an octave apart.

    A size's excess at a budget lies on lines between its numbers of tokens, on logarithms; the best
    size is the vertex of a parabola through the log of the least of these, and of up to two on each
    side, over the log of the parameters. Budgets with fewer than four sizes, or whose least loss is
    that of the smallest or largest one, are left out.
    """
    ends = [size.flops * end(size.excess) for size in sizes for end in (min, max)]
    optima = {}
    first, last = (2 * math.log2(end) for end in (min(ends), max(ends)))
    for half_octave in range(math.ceil(first), math.floor(last) + 1):
        budget = 2.0 ** (half_octave / 2)
        within = [
            size for size in sizes if min(size.excess) <= budget / size.flops <= max(size.excess)
        ]
        if len(within) < LEAST_SIZES:
            continue
        within.sort(key=lambda size: size.parameters)
        x = np.log([size.parameters for size in within])
        y = [_at(size.excess, budget / size.flops) for size in within]
        if not np.isfinite(y).all():
            continue
        least = int(np.argmin(y))
        if not 0 < least < len(x) - 1:
            continue
        around = slice(max(0, least - 2), least + 3)
        a, b, _ = np.polyfit(x[around], y[around], 2)
        if a > 0:
            optima[budget] = math.exp(float(np.clip(-b / (2 * a), x[0], x[-1])))
    return optima


def _at(excess: Mapping[int, float], tokens: float) -> float:
    """The log of the excess after so many tokens."""
    known = sorted(excess)
    return float(np.interp(math.log(tokens), np.log(known), np.log([excess[n] for n in known])))


def exponent(sizes: Sequence[Size]) -> float:
    """The power of the budget with which the best size grows; NaN of fewer than three budgets."""
    optima = best_sizes(sizes)
    if len(optima) < _LEAST_BUDGETS:
        return math.nan
    return float(np.polyfit(np.log([*optima]), np.log([*optima.values()]), 1)[0])


def with_floor(tokens: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """(floor, power) of least squares for floor + c tokens^-power, as if no floor were known."""
    x, y = np.asarray(tokens, np.float64), np.asarray(losses, np.float64)
    best = (math.inf, math.nan, math.nan)
    for power in np.linspace(0.02, 2, 496):
        columns = np.stack([np.ones_like(x), (x / x[0]) ** -power], axis=1)
        solved = np.linalg.lstsq(columns, y)[0]
        squares = float(np.sum((columns @ solved - y) ** 2))
        best = min(best, (squares, float(solved[0]), float(power)))
    return best[1], best[2]


def collapse(excess: Float[np.ndarray, "sizes seeds points"]) -> Float[np.ndarray, "2 points"]:
    """How far curves of sizes and of seeds are apart, relative to their height (2507.02119).

    Of sizes: the deviation of their mean curves, each over its own last value, over their mean. Of
    seeds: the deviation of their curves over the mean curve, the mean over sizes.
    """
    means = excess.mean(axis=1)
    shapes = means / means[:, -1:]
    of_sizes = shapes.std(axis=0, ddof=1) / shapes.mean(axis=0)
    of_seeds = (excess.std(axis=1, ddof=1) / means).mean(axis=0)
    return np.stack([of_sizes, of_seeds])
