"""Lists what moves the memory in a program, by the line of Python that made it and by instruction.

A step's least times say that memory bounds it; this says which arrays do, so that one knows what to
change.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transformer_jax.process import tables
from transformer_jax.tools.preflight import hlo
from transformer_jax.tools.preflight.hlo import Instruction, Module

_ROWS = 25  # of each table; what is left is summed up in one more
_LONGEST = 60  # characters of a cell
_PRODUCTS = ("convolution", "dot")
# Names in an operation's path that say nothing of the model.
_IN_PATHS = ("while", "body", "closed_call", "checkpoint", "rematted_computation")


class Move(NamedTuple):
    """What one instruction moves through memory in one call of the program.

    moved: bytes, of all its `runs`. what: kind of instruction. result: its type. line: the file and
    line of Python that made it, "" where XLA does not say. phase: which part of a training step it
    belongs to, by the names that JAX gives ("" for the update). path: of modules and operations.
    """

    moved: float
    runs: int
    what: str
    result: str
    line: str
    phase: str
    path: str


def moves(module: Module) -> list[Move]:
    """The moves of all instructions that have one; their sum is the traffic."""
    all_moves = []
    for instruction, runs, moved in hlo.moving(module):
        steps = list(hlo.steps(module, instruction))
        ops = {step.op for step in steps}
        named = _speaks(module, steps)
        path = _path(named)
        what = "product" if ops & set(_PRODUCTS) else "elementwise"
        if "dynamic-update-slice" in ops:
            what += ", into a stack"
        elif "dynamic-slice" in ops:
            what += ", from a stack"
        all_moves.append(
            Move(
                moved=runs * moved,
                runs=runs,
                what=what if instruction.op == "fusion" else instruction.op,
                result=_cut(re.sub(r"\{[^}]*\}", "", instruction.type)),
                line=module.sources.get(_frame(named), ""),
                phase=_phase(path),
                path=_shortened(path),
            )
        )
    return all_moves


def tables_of(moves: Sequence[Move]) -> Iterator[str]:
    """Yields two tables that sum up to the traffic: by line, and by instruction.

    Both have bytes (loops counted as often as they run) and their share. Instructions that are
    alike stand in one row.
    """
    by_line = _grouped(moves, lambda move: (move.line or f"none: {move.what}", move.phase))
    yield "What moves the memory, by line:\n" + _table(by_line, "line", "phase")
    whole = _grouped(moves, lambda move: move[2:])
    titles = "what it is", "result", "line", "phase", "path"
    yield "What moves the memory, by instruction:\n" + _table(whole, *titles)


def _speaks(module: Module, steps: Sequence[Instruction]) -> Instruction:
    """The one of fused steps that says most about all: a product, or else the largest result.

    Steps that say where they come from count before others, and those of this package first.
    """

    def rank(step: Instruction) -> tuple:
        line = module.sources.get(_frame(step), "")
        in_package = line.startswith(_OWN)
        stacked = step.op in ("dynamic-update-slice", "fusion")
        return bool(line), step.op in _PRODUCTS, in_package, not stacked, hlo.bytes_of(step.type)

    return max(steps, key=rank)


_OWN = tuple(f"{name}/" for name in ("models", "training", "tasks", "evaluation"))


def _frame(instruction: Instruction) -> str:
    match = re.search(r"\bstack_frame_id=(\d+)", instruction.rest)
    return match[1] if match else ""


def _path(instruction: Instruction) -> str:
    match = re.search(r'\bop_name="([^"]*)"', instruction.rest)
    return match[1] if match and "/" in match[1] else ""


def _phase(path: str) -> str:
    if "rematted_computation" in path:
        return "again"
    if "transpose(" in path:
        return "backward"
    return "forward" if "jvp(" in path else ""


def _shortened(path: str) -> str:
    """The innermost names of an operation's path."""
    text = "/".join(part for part in path.split("/")[1:] if part not in _IN_PATHS)
    return text if len(text) <= _LONGEST else f"...{text[3 - _LONGEST :]}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


Rows = list[tuple[float, int, tuple[str, ...]]]


def _grouped(all_moves: Sequence[Move], key: Callable[[Move], tuple[str, ...]]) -> Rows:
    """(bytes, runs, key) of the moves of each key, most bytes first."""
    sums: dict[tuple[str, ...], tuple[float, int]] = {}
    for move in all_moves:
        moved, runs = sums.get(key(move), (0.0, 0))
        sums[key(move)] = moved + move.moved, runs + move.runs
    return sorted(((*sums[name], name) for name in sums), key=lambda row: -row[0])


def _table(rows: Rows, *titles: str) -> str:
    total = sum(moved for moved, _, _ in rows)
    cells = [["bytes", "share", "times", *titles]]
    rest = rows[_ROWS:]
    others = sum(row[0] for row in rest), sum(row[1] for row in rest)
    named = [(*others, (f"{len(rest)} other rows", *[""] * (len(titles) - 1)))] if rest else []
    for moved, runs, names in rows[:_ROWS] + named:
        cells.append(
            [f"{moved:.3e}", f"{moved / total:.1%}", str(runs), *(n or "-" for n in names)]
        )
    return "\n".join(f"  {line}" for line in tables.aligned(cells))
