"""Rows of one's own: a Python file that adds to the tables which settings choose from.

A config names it by its key `rows`, for good as "experiments/mine/rows.py@1f3a5c7e9b2d": by its
path, relative to this repository where it lies there, and the start of its SHA-256, which decides:
a copy is as good as the file.
"""

import contextlib
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer_jax.configs import default
from transformer_jax.data.read.sources import SOURCES, Files, Generated
from transformer_jax.inspection.measures import PROBES
from transformer_jax.models.transformer.schemes import SCHEMES
from transformer_jax.training.schedule import SCHEDULES
from transformer_jax.training.update_rules import OPTIMIZERS

TABLES: Mapping[str, dict[str, Any]] = {
    "OPTIMIZERS": OPTIMIZERS,
    "PROBES": PROBES,
    "SCHEDULES": SCHEDULES,
    "SCHEMES": SCHEMES,
    "SOURCES": SOURCES,
}
_MEND = (
    "a work directory keeps, as rows.py, what it was trained with: restore the file from there, or "
    "name one like it by --config.rows; to train with another, choose another --workdir"
)
_ROOT = Path(default.__file__).parents[2]
_sources: dict[str, bytes] = {}  # of the files that are loaded, by digest
_owners: dict[tuple[str, str], str] = {}  # what names the file of a row, by its table and name


def load(named: str, outside: Path | None = None) -> str:
    """Adds a file's rows to the tables, and returns what names it for good.

    Args:
      named: "PATH", "PATH@HASH" or "" (no file). A relative path that is not there is looked for in
        this repository.
      outside: where the file may not lie: the folder of a config.json, which may be somebody
        else's, and names it.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it has another hash, cannot be run, or defines a row that is there already.
    """
    if not named or digest(named) in _sources:
        return named
    path = Path(named.removesuffix(digest(named))).expanduser()
    places = [place.resolve() for place in (Path.cwd() / path, _ROOT / path)]
    files = [place for place in places if place.is_file()]
    if outside is not None:
        files = [place for place in files if not place.is_relative_to(outside)]
    if not files:
        mend = f"; {_MEND}" if digest(named) else ""
        raise FileNotFoundError(f"rows={named!r}: there is no file {places[0]}{mend}")
    for file in files:
        source = file.read_bytes()
        suffix = f"@{hashlib.sha256(source).hexdigest()[:12]}"
        if digest(named) in ("", suffix):
            written = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
            if suffix not in _sources:
                _add(f"{written}{suffix}", file, source)
            return f"{written}{suffix}"
    raise ValueError(f"rows={named!r}: {files[0]} has another content now; {_MEND}")


def digest(named: str) -> str:
    """The "@HASH" at the end of a file's name; "" where there is none."""
    match = re.search(r"@[0-9a-f]{12}$", named)
    return match[0] if match else ""


def source(named: str) -> str:
    """The text of a file that is loaded."""
    return _sources[digest(named)].decode() if named else ""


def _add(name: str, file: Path, source: bytes) -> None:
    """Runs a file and adds its rows, all of them or none."""
    module = run(f"rows_{digest(name)[1:]}", file)
    tables = {table: getattr(module, table) for table in TABLES if hasattr(module, table)}
    if not tables:
        raise ValueError(f"{file} has no rows: a dict called {', '.join(TABLES)}")
    for table, rows in tables.items():
        if not isinstance(rows, dict):
            raise ValueError(f"{file}: {table} is no dict of rows: {rows!r:.80}")
        for row, value in rows.items():
            _check(table, row, value, file)
    for table, rows in tables.items():
        for row, value in rows.items():
            if table == "SOURCES":  # what it yields may be another with each change of the file
                value = {key: entry._replace(code=digest(name)) for key, entry in value.items()}
            _owners[table, row] = name
            TABLES[table][row] = value
    _sources[digest(name)] = source


def _check(table: str, row: str, value: Any, file: Path) -> None:
    """Raises ValueError for a row of another type, or of a name that means another."""
    kind = type(next(iter(TABLES[table].values())))
    if not isinstance(value, kind):
        raise ValueError(f"{file}: {table}[{row!r}] is no {kind.__name__}: {value!r:.80}")
    readers = value.values() if table == "SOURCES" else ()
    if others := [entry for entry in readers if not isinstance(entry, Files | Generated)]:
        raise ValueError(
            f"{file}: {table}[{row!r}] reads its columns by {others[0]!r:.80}: expected Files or "
            "Generated"
        )
    if row not in TABLES[table] or TABLES[table][row] == value:
        return
    if owner := _owners.get((table, row)):
        raise ValueError(
            f"{file}: {table}[{row!r}] is not that of {owner}, and a process has one of a name: "
            "rename it, or start another process if the file has changed"
        )
    raise ValueError(f"{file}: {table}[{row!r}] is a row of this library: choose another name")


def run(name: str, file: Path) -> ModuleType:
    """The module of a file, wherever it lies, which others may import by this name.

    Raises ValueError in one line for what goes wrong in it, with the place.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with mistakes(file):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def mistakes(path: Path) -> Iterator[None]:
    """Raises ValueError in one line for what goes wrong in a file of a folder, with the place."""
    try:
        yield
    except (Exception, SystemExit) as error:
        stack = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in stack if Path(frame.filename).parent == path.parent]
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else path
        reason = error if isinstance(error, ValueError | OSError | SyntaxError) else repr(error)
        raise ValueError(f"{place}: {reason}") from error
