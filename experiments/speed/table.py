"""From measured rows to the table: medians, and ratios within rounds."""

from collections.abc import Sequence
from typing import Any

from experiments.harness import results
from experiments.harness.results import Row
from experiments.speed.peers import PROGRAMS


def ratios(rows: Sequence[Row], program: str, over: str) -> list[float]:
    """Seconds of one program over those of another in the same round, for each round of a work."""
    seconds = {
        (row["program"], row["round"]): row["seconds"] for row in rows if row["round"] is not None
    }
    rounds = sorted({number for _, number in seconds})
    return [seconds[program, number] / seconds[over, number] for number in rounds]


def of_rows(rows: Sequence[Row]) -> str:
    """A markdown table: a line for each work and program."""
    return results.table(
        [line for part in results.group(rows, "work").values() for line in _lines(part)]
    )


def _lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The lines of one work; the ratio says how much faster than the program ours is."""
    lines = []
    for (name,), members in results.group(rows, "program").items():
        turns = [row for row in members if row["round"] is not None]
        same = name == "ours" or not any(row["program"] == "ours" for row in rows)
        lines.append(
            {
                "work": rows[0]["work"],
                "program": PROGRAMS[name].title if name in PROGRAMS else name,
                "seconds": results.interval((row["seconds"] for row in turns), ".3g"),
                "over ours": "" if same else results.interval(ratios(rows, name, "ours"), ".2f"),
                "peak memory (GB)": max(row["peak_bytes"] for row in turns) / 1e9,
            }
        )
    return lines
