"""Values and tables as people read them in a terminal."""

import itertools
from collections.abc import Sequence
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
