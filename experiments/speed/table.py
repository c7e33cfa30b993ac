"""From measured rows to medians, ratios within rounds, shares of the limit, and lines of tables."""

from collections.abc import Sequence
from typing import Any

from experiments.harness import results
from experiments.harness.results import Row
from experiments.harness.sweep import ROOT, Run
from experiments.speed import limit
from experiments.speed.peers import PROGRAMS
from transformer_jax.config.load import load

_PRODUCTS = "products"  # the program that does them alone


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


def with_limits(run: Run, rows: Sequence[Row]) -> list[Row]:
    """The rows of a run with "limit", the least seconds that the work can take, where it is known.

    That is the time of its products at the rate of the products alone in the same round, in the
    same number format. Products themselves get their "rate" instead, operations a second.
    """
    settings = run.measure or {}
    changed = {**run.overrides, **settings["changes"]}
    config = load(str(ROOT / run.config), changed)
    operations = limit.operations(config, settings.get("work", ""), settings.get("arguments", {}))
    each = limit.products(limit.PRODUCTS)
    rates = {row["round"]: each / row["seconds"] for row in rows if row.get("program") == _PRODUCTS}
    extended_rows = []
    for row in rows:
        program = PROGRAMS.get(row.get("program", ""))
        if program is not None and program.work == "products":
            row = {**row, "rate": each / row["seconds"]}
        elif operations is not None and rates and row["program"] != "ours_float32":
            row = {**row, "limit": operations / rates[row["round"]]}
        extended_rows.append(row)
    return extended_rows


def title(program: str) -> str:
    """What tables call a program, or the other checkout "before"."""
    return PROGRAMS[program].title if program in PROGRAMS else program


def lines(rows: Sequence[Row]) -> list[Row]:
    """The lines of one work, one for each program but the products alone."""
    table = []
    for (program,), members in results.group(rows, "program").items():
        if "rate" in members[0]:
            continue
        line: dict[str, Any] = {"work": rows[0]["work"], "program": title(program)}
        line["seconds"] = results.median_interval((row["seconds"] for row in members), ".3g")
        over = ratios(rows, program, "ours") if program != "ours" else []
        line["over ours"] = results.median_interval(over, ".2f") if over else ""
        shares = [row["limit"] / row["seconds"] for row in members if "limit" in row]
        line["share of the limit"] = results.median_interval(shares, ".2f") if shares else ""
        line["peak memory (GB)"] = max(row["peak_bytes"] for row in members) / 1e9
        table.append(line)
    return table
