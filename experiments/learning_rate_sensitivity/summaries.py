"""Several seeds as one number or one text, none of them left out in silence."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.harness.results import Row
from transformer_jax.tools.reports.intervals import Estimate

# What ablates QK-norm is drawn and listed first.
ARMS = {False: "without", True: "with"}


def model(layers: int, width: int) -> str:
    """As "6L/d64"."""
    return f"{layers}L/d{width}"


def finished(rows: Sequence[Row]) -> str:
    """How many trainings did not diverge, of how many."""
    return f"{sum(row['loss'] is not None for row in rows)} of {len(rows)}"


def known(values: Iterable[float | None]) -> list[float]:
    """Those that are there."""
    return [value for value in values if value is not None]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are there."""
    numbers = known(values)
    return float(np.mean(numbers)) if numbers else None


def mean_text(values: Sequence[float | None]) -> str:
    """The mean of those that are there, and how many these are where some are missing."""
    if not (numbers := known(values)):
        return "none"
    of = f" ({len(numbers)} of {len(values)})" * (len(numbers) < len(values))
    return f"{np.mean(numbers):.3g}{of}"


def log10(value: float | None) -> float:
    """NaN where it is missing: what is not drawn. (A logarithmic axis needs one point at least.)"""
    return math.nan if value is None else math.log10(value)


def rate(first: float) -> str:
    """A first failing rate, which is infinite where none of the grid fails."""
    return f"{first:g}" if math.isfinite(first) else "none"


def difference(name: str, gap: Estimate) -> dict[str, Any]:
    """For summary.json."""
    return {name: gap.value, f"{name}/error": gap.error, f"{name}/counts": gap.counts}
