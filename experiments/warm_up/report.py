"""What each arm trains up to and how well, and which cause of warm-up that fits."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.harness import figures, rates, results
from experiments.harness.results import Deviation, Finished, Row
from experiments.warm_up.measure import READINGS
from transformer_jax.tools.reports.intervals import Estimate

NONE, SHORT, LONG = "none", "5 %", "20 %"
BURN_IN, GI_ADAM, TOP = "burn-in", "gi_adam", "top quarter"
LION, LION_LONG, LAMB = "lion", "lion, 20 %", "lamb"
# Whose learning rates mean the same.
ADAMS = (NONE, SHORT, LONG, BURN_IN, GI_ADAM, TOP)
RESCUES, PARTLY, FAILS = "rescues", "partly", "fails"
NEEDS, NO_NEED = "needs", "no need"
NOTHING, UNDECIDED = "nothing to rescue", "undecided"
CAUSES = ("gradients", "second moments", "sharpness", "update size")
PREDICTIONS = {
    BURN_IN: (FAILS, RESCUES, FAILS, FAILS),
    LION: (NO_NEED, NO_NEED, NEEDS, NEEDS),
    TOP: (RESCUES, FAILS, FAILS, FAILS),
    LAMB: (RESCUES, FAILS, PARTLY, RESCUES),
}

_STEPS = ", ".join(map(str, READINGS))


class Finding(NamedTuple):
    """What a test shows, each more being better.

    Attributes:
      verdict: of `rescue` or `need`.
      gained: against what it is to be better than.
      short: of what a warm-up of 20 % gives; None where this is what is asked about.
    """

    verdict: str
    gained: Estimate
    short: Estimate | None


def report(runs: Sequence[Finished], out: Path) -> str:
    """Writes losses.csv, the figures and the numbers; returns the text."""
    rows = results.rows(runs)
    results.write_csv(out / "losses.csv", rows)
    blocks, numbers = [], {}
    for (scheme,), members in results.group(rows, "scheme").items():
        arms = {arm: mine for (arm,), mine in results.group(members, "arm").items()}
        tests = findings(arms)
        lines = [_line(arm, mine) for arm, mine in arms.items()]
        numbers |= _numbers(scheme, arms, tests)
        blocks += [
            f"### {figures.title(scheme)}",
            results.table(lines),
            figures.save(
                figures.by_learning_rate(members, by="arm", panel="kind"),
                out,
                f"losses_{scheme}",
                f"{figures.title(scheme)}: validation loss over the learning rate; trainings that "
                "diverged stand at the loss before training",
            ),
            _decision(tests),
            _durations(arms),
        ]
        if read := [_curvature(row) for row in members if row["curvature"]]:
            blocks += [_above_the_edge(members), results.table(read)]
    results.write_summary(out, numbers)
    about = (
        "The boundary is the first learning rate above the best one from which on all of the grid "
        "fail, of each seed. The best loss is the mean over seeds at the best of the rates at "
        f"which all of them train. Angles are the largest of steps {_STEPS}, in radians. Dead is "
        "the share of branches, mean over trainings."
    )
    return "\n\n".join([about, *blocks])


# What trains -------------------------------------------------------------------------------------


def boundaries(rows: Sequence[Row]) -> list[float]:
    """The failure boundary of each seed; see `rates.boundary`."""
    seeds = results.group(rows, "seed").values()
    return [rates.boundary(seed) for seed in seeds]


def heights(rows: Sequence[Row], grid: Sequence[float]) -> list[int]:
    """How many learning rates of a grid lie below the boundary of each seed."""
    on_grid = [row for row in rows if row["learning_rate"] in grid]
    return [sum(rate < boundary for rate in grid) for boundary in boundaries(on_grid)]


def best(rows: Sequence[Row]) -> tuple[float, list[float]] | None:
    """Of the learning rates at which all seeds train, the best one and the seeds' losses."""
    cells = results.group(rows, "learning_rate").values()
    rate = rates.best_rate([row for cell in cells if all(map(rates.trains, cell)) for row in cell])
    if rate is None:
        return None
    return rate, [row["loss"] for row in rows if row["learning_rate"] == rate]


# What the tests say ------------------------------------------------------------------------------


def findings(arms: Mapping[str, Sequence[Row]]) -> dict[str, Finding]:
    """test -> what it shows, of the rows of one scheme by arm.

    By the boundary; LAMB's, whose learning rates mean something else, by the best loss, for which
    an arm that never trains has the limit of training. Deviations are pooled over the arms.
    """
    adams = [arm for arm in ADAMS if arm in arms]
    shared = sorted(set.intersection(*(_grid(arms[arm]) for arm in adams))) if adams else []
    high = {arm: heights(arms[arm], shared) for arm in adams if shared}
    for arm in {LION, LION_LONG} & arms.keys():
        high[arm] = heights(arms[arm], sorted(_grid(arms[arm])))
    # The lower a loss the better.
    known = {arm: [-loss for loss in each[1]] for arm in arms if (each := best(arms[arm]))}
    limits = {arm: [-rates.limit(rows[0])] * _seeds(rows) for arm, rows in arms.items()}
    of_heights, of_losses = (results.pooled_deviation(list(x.values())) for x in (high, known))
    tests = {}
    for test in (BURN_IN, GI_ADAM, TOP):
        if shared and {NONE, LONG, test} <= arms.keys():
            tests[test] = rescue(high, test, of_heights)
    if {NONE, LONG, LAMB} <= arms.keys():
        tests[LAMB] = rescue(limits | known, LAMB, of_losses)
    if {LION, LION_LONG} <= arms.keys():
        tests[LION] = need(high, of_heights, most=len(_grid(arms[LION])))
    return tests


def rescue(values: Mapping[str, Sequence[float]], test: str, deviation: Deviation) -> Finding:
    """Whether a test does without warm-up what one of 20 % does, by values where more is better.

    "rescues": it gains against no warm-up, and is not short of 20 %. "partly": it gains, and is.
    "fails": it does not gain. "nothing to rescue": 20 % does not gain against none either.
    "undecided": there is no deviation, by which to tell.
    """
    gained, short, to_gain = (
        results.difference(values[a], values[b], deviation)
        for a, b in ((test, NONE), (LONG, test), (LONG, NONE))
    )
    if math.isnan(deviation.value):
        verdict = UNDECIDED
    elif not _gains(to_gain):
        verdict = NOTHING
    elif not _gains(gained):
        verdict = FAILS
    else:
        verdict = PARTLY if _gains(short) else RESCUES
    return Finding(verdict, gained, short)


def need(values: Mapping[str, Sequence[float]], deviation: Deviation, most: int) -> Finding:
    """Whether Lion's boundary gains by a warm-up of 20 %; most: rates, of which it may train all.

    "undecided" also where the grid cannot tell: it trains all without warm-up, or none with either.
    """
    gained = results.difference(values[LION_LONG], values[LION], deviation)
    all_train = min(values[LION]) == most
    none_trains = max(*values[LION], *values[LION_LONG]) == 0
    if math.isnan(deviation.value) or all_train or none_trains:
        return Finding(UNDECIDED, gained, None)
    return Finding(NEEDS if _gains(gained) else NO_NEED, gained, None)


def fitting(tests: Mapping[str, Finding]) -> dict[str, tuple[int, int]]:
    """cause -> how many of the tests that decide came out as it predicts, and how many decide."""
    verdicts = {test: each.verdict for test, each in tests.items() if test in PREDICTIONS}
    decided = {test: word for test, word in verdicts.items() if word not in (NOTHING, UNDECIDED)}
    return {
        cause: (sum(PREDICTIONS[test][n] == word for test, word in decided.items()), len(decided))
        for n, cause in enumerate(CAUSES)
    }


def _gains(estimate: Estimate) -> bool:
    return estimate.counts and estimate.value > 0


def _grid(rows: Sequence[Row]) -> set[float]:
    return {row["learning_rate"] for row in rows}


def _seeds(rows: Sequence[Row]) -> int:
    return len(results.group(rows, "seed"))


def _decision(tests: Mapping[str, Finding]) -> str:
    """The tests against what each cause predicts, which is bold where it came out."""
    if not tests:
        return "No test was run."
    lines = []
    for test, each in tests.items():
        unit = "nats" if test == LAMB else "steps"
        predicted = PREDICTIONS.get(test, ("",) * len(CAUSES))
        lines.append(
            {
                "test": test,
                "found": each.verdict,
                "gained": f"{each.gained:+} {unit}",
                "short of 20 %": "" if each.short is None else f"{each.short:+} {unit}",
            }
            | {
                cause: f"**{word}**" if word == each.verdict else word
                for cause, word in zip(CAUSES, predicted, strict=True)
            }
        )
    counts = ", ".join(f"{cause} {right} of {n}" for cause, (right, n) in fitting(tests).items())
    summary = (
        "What the tests show, and what each cause predicts (bold where it came out); gains in "
        "steps of the grid of learning rates, of LAMB in best loss, with 95 % intervals (by t). "
        f"Tests that decide and came out as predicted: {counts}."
    )
    return "\n\n".join([summary, results.table(lines)])


def durations(arms: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The loss of a longer warm-up minus that of a shorter one, by learning rate; None where not
    all seeds of both train. The deviation is pooled over all that do."""
    cells = {}
    for arm in (NONE, SHORT, LONG):
        for (rate,), members in results.group(arms.get(arm, []), "learning_rate").items():
            if all(map(rates.trains, members)):
                cells[rate, arm] = [row["loss"] for row in members]
    deviation = results.pooled_deviation(list(cells.values()))
    changes = []
    for shorter, longer in itertools.pairwise(arm for arm in (NONE, SHORT, LONG) if arm in arms):
        for rate in sorted(_grid(arms[shorter]) & _grid(arms[longer])):
            a, b = cells.get((rate, longer)), cells.get((rate, shorter))
            change = None if a is None or b is None else results.difference(a, b, deviation)
            names = {"learning_rate": rate, "longer": longer, "shorter": shorter}
            changes.append(names | {"difference": change})
    return changes


def _durations(arms: Mapping[str, Sequence[Row]]) -> str:
    changes = durations(arms)
    differences = [row["difference"] for row in changes if row["difference"] is not None]
    lower = sum(each.counts and each.value < 0 for each in differences)
    summary = (
        "What a longer warm-up changes in the loss at the same learning rate, where all seeds of "
        f"both train: lower beyond the 95 % interval in {lower} of {len(differences)} cells."
    )
    lines = []
    for (rate,), members in results.group(changes, "learning_rate").items():
        line: Row = {"learning rate": f"{rate:g}"}
        for row in members:
            change = row["difference"]
            text = "not all train" if change is None else f"{change:+}"
            line[f"{row['longer']} - {row['shorter']}"] = text
        lines.append(line)
    return "\n\n".join([summary, results.table(lines)]) if lines else summary


# Tables and figures ------------------------------------------------------------------------------


def _line(arm: str, rows: Sequence[Row]) -> Row:
    good, bad = ([row for row in rows if rates.trains(row) == which] for which in (True, False))
    optimum, grid = best(rows), sorted(_grid(rows))
    line = {
        "arm": arm,
        "trained": f"{len(good)} of {len(rows)}",
        "boundary": ", ".join(
            f"{rate:g}" if math.isfinite(rate) else f"above {grid[-1]:g}"
            for rate in boundaries(rows)
        ),
        "best rate": "never",
        "best loss": "never",
        "angle, trained": _extreme("at most", max, good),
        "angle, failed": _extreme("at least", min, bad),
        "dead, trained": _mean([row["dead"] for row in good]),
        "dead, failed": _mean([row["dead"] for row in bad]),
    }
    if optimum:
        rate, losses = optimum
        line["best rate"] = f"{rate:g}{' (end of the grid)' * (rate in (grid[0], grid[-1]))}"
        line["best loss"] = f"{np.mean(losses):.3f} ({len(losses)} seeds)"
    return line


def _extreme(word: str, choose: Any, rows: Sequence[Row]) -> str:
    """Of the largest angles of trainings; says how many had none, as they diverged before."""
    largest = _largest("angle", rows)
    if not largest:
        return "none"
    of = f" ({len(largest)} of {len(rows)})" * (len(largest) < len(rows))
    return f"{word} {choose(largest):.2g}{of}"


def _largest(name: str, rows: Sequence[Row]) -> list[float]:
    """The largest reading of each training; of those that were read before they diverged."""
    each = [[row[f"{name}/{step}"] for step in READINGS] for row in rows]
    return [max(known) for readings in each if (known := [x for x in readings if x is not None])]


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    of = f" ({len(known)} of {len(values)})" * (len(known) < len(values))
    return f"{np.mean(known):.2f}{of}"


def _above_the_edge(rows: Sequence[Row]) -> str:
    """How many trainings met the edge, by how they ended."""
    counts = {}
    for trains in (False, True):
        members = [row for row in rows if row["curvature"] and rates.trains(row) == trains]
        edges = _largest("edge", members)
        counts[trains] = f"{sum(edge > 1 for edge in edges)} of {len(edges)}"
    return (
        f"Curvature after steps {_STEPS}, one seed. After at least one it is above the edge in "
        f"{counts[False]} trainings that fail, and in {counts[True]} that train."
    )


def _curvature(row: Row) -> Row:
    def at_steps(name: str) -> str:
        values = [row[f"{name}/{step}"] for step in READINGS]
        return " / ".join("-" if value is None else f"{value:.2g}" for value in values)

    return {
        "arm": row["arm"],
        "learning rate": f"{row['learning_rate']:g}",
        "sharpness": at_steps("sharpness"),
        "of P^-1 H": at_steps("preconditioned_sharpness"),
        "share of the edge": at_steps("edge"),
        "ends": "trained" if rates.trains(row) else "diverged" if row["loss"] is None else "stuck",
    }


def _numbers(
    scheme: str, arms: Mapping[str, Sequence[Row]], tests: Mapping[str, Finding]
) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for arm, rows in arms.items():
        least = best(rows)
        numbers[f"trained/{scheme}/{arm}"] = sum(map(rates.trains, rows))
        numbers[f"best_loss/{scheme}/{arm}"] = float(np.mean(least[1])) if least else None
        numbers[f"boundary/{scheme}/{arm}"] = float(np.median(boundaries(rows)))
    for test, each in tests.items():
        numbers[f"found/{scheme}/{test}"] = each.verdict
        numbers[f"gained/{scheme}/{test}"] = each.gained.value
    for cause, (right, _) in fitting(tests).items():
        numbers[f"fits/{scheme}/{cause}"] = right
    return numbers
