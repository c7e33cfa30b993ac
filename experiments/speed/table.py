"""From measured rows to medians, ratios within rounds, shares of the limit, and lines of tables."""

from collections.abc import Sequence
from typing import Any

from experiments.harness import results
from experiments.harness.results import Row
from experiments.speed.peers import PROGRAMS


def of_work(rows: Sequence[Row], work: str) -> list[Row]:
    """The rows of one piece of work."""
    return [row for row in rows if row["work"] == work]


def ratios(rows: Sequence[Row], program: str, over: str, column: str = "seconds") -> list[float]:
    """A column of one program over that of another in the same round, for each round of a work.

    Empty where one of the two was not measured.
    """
    values = {(row["program"], row["round"]): row[column] for row in rows}
    if not {program, over} <= {name for name, _ in values}:
        return []
    rounds = sorted({number for _, number in values})
    return [values[program, number] / values[over, number] for number in rounds]


def title(program: str) -> str:
    """What tables call a program, or the other checkout "before"."""
    return PROGRAMS[program].title if program in PROGRAMS else program


def lines(rows: Sequence[Row]) -> list[Row]:
    """The lines of one work, one for each program."""
    found = []
    for (program,), members in results.group(rows, "program").items():
        line: dict[str, Any] = {"work": rows[0]["work"], "program": title(program)}
        line["seconds"] = results.interval((row["seconds"] for row in members), ".3g")
        over = ratios(rows, program, "ours") if program != "ours" else []
        line["over ours"] = results.interval(over, ".2f") if over else ""
        if "limit" in members[0]:
            share = members[0]["limit"] / results.median(row["seconds"] for row in members)
            line["limit (s)"], line["share of it"] = members[0]["limit"], f"{share:.0%}"
        line["peak memory (GB)"] = max(row["peak_bytes"] for row in members) / 1e9
        found.append(line)
    return found


def of_rows(rows: Sequence[Row]) -> str:
    """A markdown table of all works."""
    works = results.group(rows, "work").values()
    return results.table([line for part in works for line in lines(part)])
