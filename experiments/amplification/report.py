"""The output change of both steps by depth, and over the sum of squared dependencies."""

from collections.abc import Sequence
from pathlib import Path

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from transformer_jax.models.transformer.schemes import SCHEMES

STEPS = {"random": "W + 1e-4 sign(N)", "gradient": "W - 1e-6 sign(gradient)"}
# Smaller changes y are float32's rounding: entries of F change by less than 1e-6.
RESOLVED = {"random": (1e-6 / 1e-4) ** 2, "gradient": (1e-6 / 1e-6) ** 2}
# Where lines are fitted: beyond, the tokens of Post-LN have become nearly equal.
SLOPE_TO, FIT_TO = 100, 60
FITS = ("slope", "ratio_100_12", "r_squared")
FITTED = ("post_ln", "pre_ln", "admin")  # those that theorem 2's corollaries are about


def report(runs: Sequence[Finished], out: Path) -> str:
    """A table and a figure for each step, and the output change over the dependencies."""
    draws = results.rows(runs)
    medians = _medians(draws)
    results.write_csv(out / "amplification.csv", medians)
    parts = []
    for step, meaning in STEPS.items():
        rows = [row for row in medians if row["step"] == step]
        by_scheme = {
            scheme: _numbers(mine, RESOLVED[step])
            for (scheme,), mine in results.group(rows, "scheme").items()
        }
        for name in FITS:
            numbers = {f"{step}/{name}/{scheme}": each[name] for scheme, each in by_scheme.items()}
            results.write_summary(out, numbers)
        table = results.table(
            [{"scheme": figures.title(scheme), **each} for scheme, each in by_scheme.items()]
        )
        parts += [f"**Step {step}**, {meaning}:", table, _by_depth(draws, step, meaning, out)]
    return "\n\n".join([*parts, _by_dependencies(medians, out)])


def _medians(rows: list[Row]) -> list[Row]:
    """A row for each scheme, depth and step: medians over draws, and their intervals."""
    medians = []
    for (scheme, sublayers), mine in results.group(rows, "scheme", "sublayers").items():
        dependencies = results.median(row["dependencies"] for row in mine)
        for step in STEPS:
            change = results.spread(row[step] for row in mine)
            medians.append(
                {
                    "scheme": scheme,
                    "sublayers": sublayers,
                    "step": step,
                    "output_change": change.median,
                    "low": change.low,
                    "high": change.high,
                    "dependencies": dependencies,
                    "draws": change.count,
                }
            )
    return medians


def _numbers(rows: list[Row], resolved: float) -> Row:
    """The numbers of a scheme and a step: no line through what float32 does not resolve."""
    change = {row["sublayers"]: row["output_change"] for row in rows}
    dependencies = {row["sublayers"]: row["dependencies"] for row in rows}
    return {
        **{f"y({n})": change[n] for n in (2, 12, 100, 200) if n in change},
        **dict.fromkeys(FITS),
        **(_fits(change, dependencies) if min(change.values()) > resolved else {}),
        **{f"sum({n})": dependencies[n] for n in (12, 100)},
    }


def _fits(change: dict[int, float], dependencies: dict[int, float]) -> Row:
    """The values of `FITS` from medians by number of sublayers."""
    sloped = [n for n in change if n <= SLOPE_TO]
    fitted = [n for n in change if n <= FIT_TO]
    slope = results.log_log_slope(sloped, [change[n] for n in sloped])
    fit = results.line([dependencies[n] for n in fitted], [change[n] for n in fitted])
    return dict(zip(FITS, (slope, change[100] / change[12], fit.r_squared), strict=True))


def _by_depth(rows: list[Row], step: str, meaning: str, out: Path) -> str:
    points = [{**row, "norm": _place(row["scheme"])} for row in rows if row[step] > RESOLVED[step]]
    figure = figures.lines(
        sorted(points, key=lambda row: row["norm"]),
        x="sublayers",
        y=step,
        by="scheme",
        panel="norm",
        xlabel="sublayers",
        ylabel="output change y",
        xscale="log",
        yscale="log",
    )
    return figures.save(figure, out, step, f"Output change by {meaning} over depth")


def _place(scheme: str) -> str:
    """Where the norm of the residual sum stands."""
    return "after the sum" if SCHEMES[scheme].post_norm else "elsewhere or none"


def _by_dependencies(rows: list[Row], out: Path) -> str:
    points = [
        row
        for row in rows
        if row["scheme"] in FITTED and row["step"] == "random" and row["sublayers"] <= FIT_TO
    ]
    figure = figures.lines(
        points,
        x="dependencies",
        y="output_change",
        by="scheme",
        xlabel="sum of squared dependencies",
        ylabel="output change y",
        xscale="log",
        yscale="log",
    )
    return figures.save(
        figure,
        out,
        "dependencies",
        f"Output change by random steps over the sum of squared dependencies, 2 to {FIT_TO} "
        "sublayers",
    )
