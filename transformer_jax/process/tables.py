"""Values, columns and tables as people read them in a terminal."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line per row, its first cell flush left, the others flush right; an empty row is blank."""
    columns = itertools.zip_longest(*rows, fillvalue="")
    first, *widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip() if row else ""
        for row in rows
    ]


def cell(value: Any) -> str:
    """A value of results.json: four decimals or more digits, and None for what is not finite."""
    if value is None:
        return "not finite"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which the rows differ, in order of appearance; a missing value is None."""
    columns = dict.fromkeys(column for row in rows for column in row)
    return [name for name in columns if any(row.get(name) != rows[0].get(name) for row in rows)]


def short_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the rows apart: "VALUE" where one column does, else "NAME=VALUE NAME=VALUE".

    Empty for rows that are alike.
    """
    columns = differing(rows)
    if len(columns) == 1:
        return [str(row.get(columns[0])) for row in rows]
    return [" ".join(f"{name}={row.get(name)}" for name in columns) for row in rows]
