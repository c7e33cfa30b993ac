"""Tables of claims, times and limits, and a figure of who is faster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness import figures, results
from experiments.harness.results import Finished, Row
from experiments.speed import claims, table

_DRAWN = ("step_small", "step_base", "step_decoder", "step_base_bfloat16")
_DRAWN += ("step_xs", "step_s", "step_m")
_DRAWN += ("beam", "greedy", "greedy_decoder", "sample_decoder")


def report(runs: list[Finished], out: Path) -> str:
    """Writes rows as csv, the figure and the medians of the claims; returns the text."""
    rows = [row for run in runs for row in table.with_limits(run.run, results.rows([run]))]
    name = "multi30k" if table.of_work(rows, "epoch") else "cpu"
    results.write_csv(out / f"{name}.csv", rows)
    medians = claims.medians(rows)
    results.write_summary(
        out, {f"{name}/{claim.text}": median for claim, median in medians.items()}
    )
    tables = {
        "Claims": claims.lines(rows),
        "Times": _times(rows),
        "What the machine multiplies": _rates(rows),
        "From the start of a process to its first training step": _starts(rows),
        "Whole commands": _commands(rows),
        "Real text": _text(rows),
    }
    parts = [_versions(rows)]
    for title, lines in tables.items():
        if lines:
            parts += [f"### {title}", results.table(lines)]
    if name == "cpu":
        description = "Seconds of each program over this project's in the same round"
        parts.append(figures.save(_figure(rows), out, "over_ours", description))
    return "\n\n".join(parts)


def _versions(rows: Sequence[Row]) -> str:
    """Which programs took part, and their versions."""
    versions = {table.title(row["program"]): row["version"] for row in rows if row.get("version")}
    return "; ".join(f"{name}: {text}" for name, text in versions.items()) + "."


def _times(rows: Sequence[Row]) -> list[Row]:
    works = {work: members for (work,), members in results.group(rows, "work").items()}
    turns = [work for work in works if work in _DRAWN or work == "compile"]
    return [line for work in turns for line in table.lines(works[work])]


def _rates(rows: Sequence[Row]) -> list[Row]:
    return [
        {
            "during": work,
            "program": table.title(name),
            "GFLOP/s": results.median_interval((row["rate"] / 1e9 for row in members), ".0f"),
        }
        for (work, name), members in results.group(
            [row for row in rows if "rate" in row], "work", "program"
        ).items()
    ]


def _starts(rows: Sequence[Row]) -> list[Row]:
    groups = results.group(table.of_work(rows, "start"), "program").items()
    return [
        {
            "program": table.title(name),
            "empty compilation cache (s)": _interval(members, "cold"),
            "full (s)": _interval(members, "warm"),
        }
        for (name,), members in groups
    ]


def _commands(rows: Sequence[Row]) -> list[Row]:
    """One line that is generated, beside the imports; trainings in one process, beside one each."""
    both = [*table.of_work(rows, "generate"), *table.of_work(rows, "sweep")]
    return [
        {
            "work": work,
            "how": name,
            "seconds": _interval(members, "seconds"),
            "sum of losses": members[0].get("loss", ""),
        }
        for (work, name), members in results.group(both, "work", "program").items()
    ]


def _interval(rows: Sequence[Row], column: str) -> str:
    return results.median_interval((row[column] for row in rows), ".3g")


def _text(rows: Sequence[Row]) -> list[Row]:
    """Real target tokens a second, and how full of them the rows are."""
    both = [*table.of_work(rows, "epoch"), *table.of_work(rows, "pipeline")]
    return [
        {
            "work": work,
            "program": table.title(name),
            "tokens a second": results.median_interval(map(claims.rate, members), ".0f"),
            "places with a token": f"{_sum(members, 'tokens') / _sum(members, 'slots'):.1%}",
        }
        for (work, name), members in results.group(both, "work", "program").items()
    ]


def _sum(rows: Sequence[Row], column: str) -> float:
    return sum(row[column] for row in rows)


def _figure(rows: Sequence[Row]):
    """A line for each work, a point for each program."""
    timings = [row for row in rows if row["work"] in _DRAWN and "rate" not in row]
    works = [work for (work,) in results.group(timings, "work")]
    programs = [name for (name,) in results.group(timings, "program") if name != "ours"]
    figure, (ax,) = figures.panels(1, 1)
    for program in programs:
        points = [
            (results.median(ratios), place)
            for place, work in enumerate(works)
            if (ratios := table.ratios(table.of_work(rows, work), program, "ours"))
        ]
        looks: dict[str, Any] = figures.style(program, programs) | {"linestyle": "none"}
        looks["label"] = table.title(program)
        ax.plot([x for x, _ in points], [y for _, y in points], **looks)
    ax.axvline(1.0, color="grey", linewidth=0.8)
    ax.set_yticks(range(len(works)), works)
    ax.invert_yaxis()
    ax.set(xlabel="seconds over this project's", xlim=(0, None))
    figures.legend(figure, [ax])
    return figure
