"""How often a series of losses or gradient norms jumps, in percent of its steps."""

import array
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

_FEWEST = 100  # values before one, without which it is not judged


def spike_scores(metrics: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The "spike_score" of the loss and of the gradient's norm, where each step was logged.

    metrics: the records of metrics.jsonl.
    """
    series = {"loss": array.array("d"), "gradient_norm": array.array("d")}
    steps = (record for record in metrics if "train/loss" in record)
    for number, record in enumerate(steps, start=1):
        if record["step"] != number:
            return {}
        for name, values in series.items():
            value = record[f"train/{name}"]
            values.append(math.nan if value is None else value)
    scores = {name: spike_score(np.array(values)) for name, values in series.items()}
    known = {name: score for name, score in scores.items() if not np.isnan(score)}
    return {"spike_score": known} if known else {}


def spike_score(
    values: Float[np.ndarray, " N"], *, window: int = 1_000, deviations: float = 7.0
) -> float:
    """Percent of the values that are far from the mean of the up to `window` values before each.

    Far are at least so many standard deviations of these values, as OLMo 2 counts (2501.00656); and
    all that are not finite, which enter no mean. NaN where no value has enough before it.
    """
    finite = np.isfinite(values)
    # Around their median, so that squares of large values do not swallow small deviations.
    middle = np.median(values[finite]) if finite.any() else 0.0
    known = np.where(finite, values - middle, 0.0).astype(np.float64)
    counts = _before(finite.astype(np.float64), window)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = _before(known, window) / counts
        variances = _before(known**2, window) / counts - means**2
    far = np.abs(known - means) >= deviations * np.sqrt(np.maximum(variances, 0.0))
    judged = counts >= _FEWEST
    spiked = (far & (known != means)) | ~finite
    return float(100 * np.mean(spiked[judged])) if judged.any() else float("nan")


def _before(values: Float[np.ndarray, " N"], window: int) -> Float[np.ndarray, " N"]:
    """The sum of the up to `window` values before each."""
    # Not a difference of sums over all values, which one that is far larger would turn to rounding.
    padded = np.pad(values, (window, 0))
    return np.sum(np.lib.stride_tricks.sliding_window_view(padded, window)[:-1], axis=1)
