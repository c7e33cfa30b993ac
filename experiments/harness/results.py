"""From the files of finished runs to rows, intervals, tables, csv, summary.json and the README.

WORKDIR/run.json           what was run, and on what machine
WORKDIR/results.json       of a trained run: status, final scores, device (see `workdir`)
WORKDIR/metrics.jsonl      of a trained run: the numbers of training
WORKDIR/measurements.json  of a measured run: its rows, config, device and time
"""

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from experiments.harness.sweep import FOLDERS, Run
from transformer_jax.config import load as overrides
from transformer_jax.runs.workdir import (
    CONFIG,
    read_metrics,
    read_results,
    write_atomically,
)
from transformer_jax.tools.reports import intervals
from transformer_jax.tools.reports.intervals import Estimate

# Labels and measured values by column.
Row = dict[str, Any]
# How training may have ended for a run that is not run again.
ENDED = ("finished", "plateaued", "diverged")
FEW = 5  # values, of which a bootstrap interval of the median is the range
_DIGITS = 6  # significant, so that a rerun elsewhere does not change every line of a file


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run that is done, with what it wrote; empty where it wrote no such thing.

    Attributes:
      record: run.json; absent keys where the run was made elsewhere.
      results: results.json.
      metrics: the records of metrics.jsonl, in order of their steps.
      measurements: the rows of measurements.json.
      measured_on: what else measurements.json says (config, device_kind, versions, seconds).
    """

    run: Run
    workdir: Path
    record: Mapping[str, Any]
    results: Mapping[str, Any]
    metrics: Sequence[Row]
    measurements: Sequence[Row]
    measured_on: Mapping[str, Any]

    @property
    def labels(self) -> Mapping[str, Any]:
        """The run's labels."""
        return self.run.labels

    def series(self, name: str) -> tuple[list[int], list[Any]]:
        """The steps at which a number was logged, and its values; NaN where it was not finite."""
        points = [(record["step"], record[name]) for record in self.metrics if name in record]
        steps = [step for step, _ in points]
        return steps, [math.nan if value is None else value for _, value in points]

    def curve(self, name: str) -> list[Row]:
        """A row with the labels, the "step" and the "loss" for each point of a logged loss."""
        points = zip(*self.series(name), strict=True)
        return [{**self.labels, "step": step, "loss": loss} for step, loss in points]


class Spread(NamedTuple):
    """Repeated measurements: times of rounds, norms over draws.

    low, high: of more than `FEW` values the bootstrap interval of the median, of fewer their range,
      which is all that such an interval could be; None for one value.
    """

    median: float
    mean: float
    low: float | None
    high: float | None
    count: int


class Line(NamedTuple):
    """The least-squares line y = slope x + intercept, and its R squared."""

    slope: float
    intercept: float
    r_squared: float


class Deviation(NamedTuple):
    """A standard deviation, and how many degrees of freedom it is known from."""

    value: float
    freedom: float


def load(run: Run, workdir: Path) -> Finished:
    """Reads what a finished run has left in its work directory."""
    measured = dict(read_json(workdir / "measurements.json"))
    return Finished(
        run=run,
        workdir=workdir,
        record=read_json(workdir / "run.json"),
        results=read_results(workdir),
        metrics=list(read_metrics(workdir)),
        measurements=measured.pop("rows", []),
        measured_on=measured,
    )


def is_trained(run: Run, workdir: Path) -> bool:
    """Whether training has ended here, and nothing is asked for that would score it otherwise."""
    saved = workdir / CONFIG
    if read_results(workdir).get("status") not in ENDED or not saved.exists():
        return False
    return overrides.changes(overrides.load(str(saved)), run.resolved).keys() <= {*FOLDERS}


def is_measured(run: Run, workdir: Path) -> bool:
    """Whether measurements are there, and of this config; older ones do not name theirs."""
    record = read_json(workdir / "measurements.json")
    return "rows" in record and record.get("config", run.measured) == run.measured


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is none."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


# Numbers -----------------------------------------------------------------------------------------


def rows(runs: Iterable[Finished]) -> list[Row]:
    """The measured rows of all runs, each with the labels of its run in front."""
    return [{**run.labels, **row} for run in runs for row in run.measurements]


def group(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by their values in the columns, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def spread(values: Iterable[float | None], *, confidence: float = 0.95) -> Spread:
    """Median, mean, and percentile bootstrap interval of the median. The draws are always the same.

    A missing value (None) counts as NaN. Up to `FEW` values have their range in place of that.
    """
    values = np.asarray(list(values), np.float64)
    low = high = None
    if 1 < values.size <= FEW and np.isfinite(values).all():
        low, high = float(values.min()), float(values.max())
    elif values.size > FEW and np.isfinite(values).all():
        interval = stats.bootstrap(
            (values,),
            np.median,
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Spread(float(np.median(values)), float(np.mean(values)), low, high, values.size)


def median(values: Iterable[float | None]) -> float:
    """The median; NaN where a value is missing (None) or NaN."""
    return float(np.median(np.asarray(list(values), np.float64)))


def interval(values: Iterable[float | None]) -> str:
    """The mean over seeds, as "1.768 ± 0.010" with its 95 % interval by Student's t.

    Empty where a value is missing (None).
    """
    known = list(values)
    return "" if None in known else f"{intervals.mean(known)}"


def convention(rows: Iterable[Row], *columns: str) -> str:
    """The sentence beside means of `interval` over rows that are alike in the columns, with n."""
    return intervals.convention(map(len, group(rows, *columns).values()))


def median_interval(values: Iterable[float | None], form: str = ".3g") -> str:
    """The median of repeated measurements, as "1.5 (1.2 to 1.9)" with its range or interval, as of
    `spread`.

    Empty where a value is missing (None). form: of each number, as "+.3f".
    """
    known = list(values)
    if None in known:
        return ""
    bounds = spread(known)
    text = f"{bounds.median:{form}}"
    return text if bounds.low is None else f"{text} ({bounds.low:{form}} to {bounds.high:{form}})"


def paired_differences(
    rows: Iterable[Row], value: str, *, between: tuple[str, Any, Any], on: Sequence[str]
) -> list[float]:
    """Differences of `value` between two groups of rows that are alike in the columns `on`.

    between: (column, a, b), as ("scheme", "admin", "pre_ln"): a's value minus b's.

    Raises:
      ValueError: when a pair is incomplete, or a row has more than one partner.
    """
    column, *sides = between
    values: list[dict[tuple, float]] = [{}, {}]
    for row in rows:
        for side, by_key in zip(sides, values, strict=True):
            if row[column] != side:
                continue
            key = tuple(row[name] for name in on)
            if key in by_key:
                names = ", ".join(on)
                raise ValueError(f"two rows of {column}={side!r} are alike in {names}: {key}")
            by_key[key] = row[value]
    first, second = values
    if alone := first.keys() ^ second.keys():
        raise ValueError(f"rows without a partner in {column}: {sorted(alone, key=str)}")
    return intervals.paired_differences(first, second)


def pooled_deviation(groups: Iterable[ArrayLike]) -> Deviation:
    """The standard deviation within groups that share one; NaN where none has two values.

    A group of which a value is not finite, as of a seed that diverged, is left out.
    """
    arrays = [np.asarray(values, np.float64) for values in groups]
    arrays = [values for values in arrays if np.isfinite(values).all()]
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in arrays)
    freedom = sum(values.size - 1 for values in arrays)
    return Deviation(math.sqrt(squares / freedom) if freedom else math.nan, freedom)


def above(estimate: Estimate, least: float = 0.0) -> str:
    """ "held" of what is above `least` and beyond two standard errors from 0, "contradicted" of
    what is below it by more than two, "undecided" between, and of what has no standard error.
    """
    if estimate.value > least and estimate.value > 2 * estimate.error:
        return "held"
    return "contradicted" if estimate.value + 2 * estimate.error < least else "undecided"


def difference(
    values: ArrayLike, others: ArrayLike, deviation: Deviation | None = None
) -> Estimate:
    """The mean of the values minus that of the others.

    deviation: of both, from more groups than these two; None: pooled over them.
    """
    a, b = (np.asarray(each, np.float64) for each in (values, others))
    if deviation is None:
        deviation = pooled_deviation([a, b])
    error = deviation.value * math.sqrt(1 / a.size + 1 / b.size)
    return Estimate(float(a.mean() - b.mean()), error, deviation.freedom)


def at_most(estimate: Estimate, line: float = 0.0) -> str:
    """ "held" of what is at most the line, "contradicted" beyond two standard errors above it, and
    "undecided" between, and of what has no standard error.
    """
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.error)):
        return "undecided"
    if estimate.value <= line:
        return "held"
    return "contradicted" if estimate.value - line > 2 * estimate.error else "undecided"


def parting(metrics: Iterable[Row], others: Iterable[Row], tolerance: float = 0.0) -> int | None:
    """The first step at which both runs logged a train/loss and these differ by more.

    None: they never do. A loss that is not finite differs from every finite one.
    """
    losses, others = (
        {record["step"]: record["train/loss"] for record in records if "train/loss" in record}
        for records in (metrics, others)
    )
    for step in sorted(losses.keys() & others.keys()):
        a, b = losses[step], others[step]
        if a is None or b is None:
            if a is not b:
                return step
        elif abs(a - b) > tolerance:
            return step
    return None


def line(x: ArrayLike, y: ArrayLike) -> Line:
    """The least-squares line through points. Raises ValueError when all x are the same."""
    fit: Any = stats.linregress(x, y)
    return Line(float(fit.slope), float(fit.intercept), float(fit.rvalue**2))


def analysis_of_variance(groups: Iterable[ArrayLike]) -> float:
    """The p of equal means of groups that share a deviation, one-way."""
    return float(stats.f_oneway(*groups).pvalue)


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rho."""
    correlation: Any = stats.spearmanr(x, y)
    return float(correlation.statistic)


def common_slope(groups: Iterable[tuple[ArrayLike, ArrayLike]]) -> Estimate:
    """The slope of y on x that groups (x, y) share, each of which has an intercept of its own."""
    arrays = [[np.asarray(side, np.float64) for side in group] for group in groups]
    centred = [[side - side.mean() for side in group] for group in arrays]
    x, y = (np.concatenate(side) for side in zip(*centred, strict=True))
    slope = float(x @ y / (x @ x))
    rest, freedom = y - slope * x, len(x) - len(centred) - 1
    return Estimate(slope, math.sqrt(float(rest @ rest) / freedom / float(x @ x)), freedom)


def log_log_slope(x: ArrayLike, y: ArrayLike) -> float:
    """The exponent p of y ~ x^p, by least squares on logarithms; all values are positive."""
    return line(np.log(x), np.log(y)).slope


# Files -------------------------------------------------------------------------------------------


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Writes rows, whose columns keep the order in which they first appear."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({column: _rounded(value) for column, value in row.items()})


def write_summary(out: Path, numbers: Mapping[str, Any]) -> None:
    """Merges headline numbers under flat names ("slope/post_ln") into summary.json.

    What other sweeps of the folder have written stays. What is not finite becomes null.
    """
    path = out / "summary.json"
    merged = read_json(path) | {name: _rounded(value) for name, value in numbers.items()}
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in merged.items()
    }
    text = json.dumps(finite, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text + "\n")


def table(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """A markdown table with these columns (None: all); three significant digits."""
    columns = columns or list(dict.fromkeys(column for row in rows for column in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    numeric = [
        all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns
    ]
    rule = ["---:" if right else ":---" for right in numeric]
    return "\n".join("| " + " | ".join(row) + " |" for row in (columns, rule, *cells))


def provenance(runs: Sequence[Finished]) -> str:
    """One sentence: how many runs, for how long, on what, with which JAX, and when."""
    by_workdir = {run.workdir: run for run in runs}.values()
    seconds, facts = 0.0, {"device": set(), "jax": set(), "date": set()}
    for run in by_workdir:
        seconds += run.results.get("time/wall_seconds", 0.0) + run.measured_on.get("seconds", 0.0)
        results = {**run.results, **run.measured_on}
        device = results.get("device_kind", "unknown device")
        machine = run.record.get("machine", "")
        facts["device"].add(
            ", ".join(filter(None, [machine, device * (device != "cpu")])) or device
        )
        facts["jax"].add(results.get("versions", {}).get("jax", "unknown"))
        facts["date"].add(run.record.get("date", ""))
    dates = sorted(facts["date"] - {""}) or ["at an unknown date"]
    count = len(by_workdir)
    return (
        f"{count} run{'s' * (count != 1)}, {seconds / 60:.3g} minutes in all, one after the other; "
        f"{' and '.join(sorted(facts['device']))}; JAX {' and '.join(sorted(facts['jax']))}; "
        f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}."
    )


def insert(readme: Path, sweep: str, text: str) -> None:
    """Replaces what stands between the markers of a sweep in a README.

    A README that lacks the markers gets them at its end; one that is not there is made.
    """
    check_markers(readme, sweep)
    start, end = markers(sweep)
    old = _text(readme) or f"# {readme.parent.name}\n"
    if start not in old.splitlines():
        old += f"\n{start}\n{end}\n"
    before, _, rest = old.partition(start)
    _, _, after = rest.partition(end)
    write_atomically(readme, f"{before}{start}\n\n{text.strip()}\n\n{end}{after}")


def check_markers(readme: Path, sweep: str) -> None:
    """Raises ValueError when a README has the markers of a sweep, but not once and in order."""
    start, end = markers(sweep)
    lines = [line for line in _text(readme).splitlines() if line in (start, end)]
    if lines and lines != [start, end]:
        raise ValueError(
            f"{readme} needs the lines {start} and {end} once each and in that order, or neither"
        )


def markers(sweep: str) -> tuple[str, str]:
    """The lines of a README between which the sweep's report stands."""
    return f"<!-- generated: {sweep} -->", f"<!-- end: {sweep} -->"


def _text(path: Path) -> str:
    """The content of a text file; empty where there is none."""
    return path.read_text("utf-8") if path.exists() else ""


def _rounded(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _cell(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    if value is None:
        return ""
    if isinstance(value, float):
        # "1.2e+04" is hard to read among numbers, 12000 is not.
        return f"{float(f'{value:.3g}'):,.10g}" if abs(value) < 1e6 else f"{value:.3g}"
    return str(value)
