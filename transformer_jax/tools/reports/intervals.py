"""Means over seeds with their 95 % intervals: one convention for tables, figures and pages.

The interval of a mean is Student's, by the deviation of its own values. Two arms are compared by
the mean difference of pairs of equal seeds: what a seed does to both cancels.
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """A mean, or a difference of two, and its standard error; NaN where nothing was run twice.

    freedom: of the deviation that the error is made of.
    """

    value: float
    error: float
    freedom: float

    @property
    def half_width(self) -> float:
        """Of the 95 % interval by Student's t."""
        return self.error * _quantile(self.freedom)

    @property
    def counts(self) -> bool:
        """Whether 0 lies outside of the interval."""
        return abs(self.value) > self.half_width

    def __format__(self, sign: str) -> str:
        """As "1.768 ± 0.010": half the interval to two digits, the value to the same place.

        sign: "+" for that of a difference. Without an interval the value has four digits.
        """
        half = self.half_width
        if not (math.isfinite(half) and math.isfinite(self.value)):
            return f"{self.value:{sign}.4g}"
        half = half if half > 1e-6 * abs(self.value) else 0.0  # float32 knows no more
        power = math.floor(math.log10(max(abs(self.value), half) or 1))
        power = 0 if -5 < power < 6 else power
        value, half = self.value / 10.0**power, half / 10.0**power
        places = 1 - int(f"{half:.1e}".partition("e")[2]) if half else 3
        digits = max(0, places)
        text = f"{round(value, places):{sign},.{digits}f} ± {round(half, places):,.{digits}f}"
        return f"({text})e{power:+03}" if power else text


def mean(values: Iterable[float | None]) -> Estimate:
    """The mean of some values, of their own deviation; NaN where one is missing (None) or NaN."""
    known = [math.nan if value is None else float(value) for value in values]
    count, center = len(known), math.fsum(known) / len(known)
    squares = math.fsum((value - center) ** 2 for value in known)
    error = math.sqrt(squares / (count - 1) / count) if count > 1 else math.nan
    return Estimate(center, error, count - 1)


@functools.cache
def _quantile(freedom: float) -> float:
    from scipy import special  # here, since it takes a quarter of a second, and few need it

    return float(special.stdtrit(freedom, 0.975))


def paired_differences(values: Mapping[Any, float], others: Mapping[Any, float]) -> list[float]:
    """The values less the others of the same seeds; a seed that one side lacks is left out."""
    return [value - others[seed] for seed, value in values.items() if seed in others]


def less(values: Mapping[Any, float], others: Mapping[Any, float]) -> str:
    """The values less the others in pairs, as "-0.040 ± 0.010 (3 pairs)"; empty without a pair."""
    differences = paired_differences(values, others)
    alone = len(values) + len(others) - 2 * len(differences)
    pairs = f"{len(differences)} pair{'s' * (len(differences) != 1)}"
    rest = f", {alone} run{'s' * (alone != 1)} left out" * bool(alone)
    return f"{mean(differences):+} ({pairs}{rest})" if differences else ""


def convention(counts: Iterable[int]) -> str:
    """The sentence beside numbers that are means of so many values; empty where each is of one."""
    ends = sorted({*counts} - {0}) or [1]
    n = " to ".join(str(end) for end in dict.fromkeys([ends[0], ends[-1]]))
    return f"Means ± half their 95 % interval by Student's t, n = {n}." if ends[-1] > 1 else ""
