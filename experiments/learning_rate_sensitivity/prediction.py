"""Which learning rate fails in a larger model, by the attention logits of smaller ones in warm-up.

As Wortsman et al. 2023 (2309.14322, 3.3), but with a line in place of their parabola, which would
go through any three sizes, and with a threshold from the smallest model that fails.

Of rows {layers, width, learning_rate, seed, loss, unigram_entropy, warm_up/largest_logit}.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from experiments.harness import rates
from experiments.harness.results import Row, group


def kernels(layers: int, width: int) -> int:
    """The parameters of attention and feed-forward matrices."""
    return 12 * layers * width**2


def threshold(rows: Sequence[Row]) -> float:
    """Between the largest logit of what trains and the least of what fails, of the smallest model
    that fails at a learning rate; infinite where none does."""
    sizes = group(rows, "layers", "width")
    for size in sorted(sizes, key=lambda size: kernels(*size)):
        trained, failed = [], []
        for seed in group(sizes[size], "seed").values():
            first = rates.boundary(seed)
            for row in seed:
                (trained if row["learning_rate"] < first else failed).append(_logit(row))
        trained, failed = (list(filter(math.isfinite, each)) for each in (trained, failed))
        if failed:
            return math.sqrt(max(trained) * min(failed)) if trained else min(failed)
    return math.inf


def largest_logits(rows: Sequence[Row], layers: int, width: int) -> dict[float, float | None]:
    """By learning rate, a line in the logs of logit and size, at another size.

    None where a training diverged before its logits were looked at, or where there is one size.
    """
    logits: dict[float, float | None] = {}
    for (rate,), members in group(rows, "learning_rate").items():
        x = np.log2([kernels(row["layers"], row["width"]) for row in members])
        y = np.array([_logit(row) for row in members])
        logits[rate] = None
        if np.isfinite(y).all() and len(set(x)) > 1:
            slope, intercept = np.polyfit(x, np.log2(y), 1)
            logits[rate] = float(2 ** (slope * np.log2(kernels(layers, width)) + intercept))
    return logits


def first_above(logits: Mapping[float, float | None], limit: float) -> float:
    """The learning rate from which on all logits exceed the limit or are missing; else infinite."""
    return rates.first_failing(logits, limit)


def to_test(grid: Iterable[float], first: float) -> list[float]:
    """What decides whether the first failing rate is this: it, and the one before, of the grid."""
    ordered = sorted(grid)
    above = sum(rate < first for rate in ordered)
    return ordered[max(0, above - 1) : above + 1]


def text(logit: float | None) -> str:
    """A logit; missing where training diverged before it was looked at."""
    return "diverged before" if logit is None else f"{logit:.3g}"


def _logit(row: Row) -> float:
    """Infinite where training diverged before."""
    logit = row.get("warm_up/largest_logit")
    return math.inf if logit is None else logit
