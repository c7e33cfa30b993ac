"""How often a series of losses or gradient norms jumps, in percent of its steps."""

import numpy as np
from jaxtyping import Float

_FEWEST = 100  # values before one, without which it is not judged


def spike_score(
    values: Float[np.ndarray, " N"], *, window: int = 1_000, deviations: float = 7.0
) -> float:
    """Percent of the values that are far from the mean of the up to `window` values before each.

    Far are at least so many standard deviations of these values, as OLMo 2 counts (2501.00656); and
    all that are not finite, which enter no mean. NaN where no value has enough before it.
    """
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0).astype(np.float64)
    # Around their mean, so that squares of large values do not swallow small deviations.
    known = np.where(finite, known - known.sum() / max(finite.sum(), 1), 0.0)
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
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(len(values))
    return sums[ends] - sums[np.maximum(ends - window, 0)]
