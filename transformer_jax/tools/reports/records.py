"""What runs have left in their work directories, side by side: for `compare` and `report`.

Runs may be in any state: still training, stopped, failed, diverged or finished. It needs no JAX.
"""

import collections
import itertools
import json
import math
import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.configs.default import get_config
from transformer_jax.runs.workdir import (
    CONFIG,
    METRICS,
    SCORED,
    flatten,
    is_checkpoint,
    read_metrics,
    read_results,
    reading,
)

DIAGNOSTICS = "diagnostics/"
SWEEPS = "sweeps.json"  # beside the runs of an experiment: the order of each of its sweeps
_STRETCHES = 2_000

Point = tuple[int, Any]  # a step, and its number or vector; None: not finite


class Curve:
    """What was logged under a name, in no more memory for millions of steps than for thousands.

    Steps are divided into stretches of `width`, which is 1 until there are more than 2,000 and then
    doubles. Of each stay the least, the largest, the last and the first value that is not finite;
    of vectors the last.

    vector: whether its values are vectors, measured inside the model by depth.
    """

    vector = False

    def __init__(self):
        self.width = 1
        self._stretches: dict[int, list[Point]] = {}

    def add(self, step: int, value: Any) -> None:
        """Adds the value of a step that is not before the last one."""
        self.vector = isinstance(value, list)
        points = self._stretches.setdefault(step // self.width, [])
        points.append((step, value))
        if len(points) > 16:
            points[:] = _outstanding(points)
        if len(self._stretches) > _STRETCHES:
            old, self.width, self._stretches = self.points(), 2 * self.width, {}
            for point in old:
                self._stretches.setdefault(point[0] // self.width, []).append(point)

    def points(self) -> list[Point]:
        """Those that stay, in order of their steps."""
        return [point for each in self._stretches.values() for point in _outstanding(each)]


def _outstanding(points: list[Point]) -> list[Point]:
    if isinstance(points[-1][1], list):
        return points[-1:]
    gaps = [point for point in points if point[1] is None]
    known = sorted((point for point in points if point[1] is not None), key=lambda point: point[1])
    return sorted({*known[:1], *known[-1:], *gaps[:1], points[-1]}, key=lambda point: point[0])


class Record(NamedTuple):
    """What a run has left in its work directory.

    config: by dotted key, as JSON. labels: those of an experiment's run, empty for any other.
    curves: of each name in metrics.jsonl.
    """

    folder: Path
    config: dict[str, Any]
    labels: dict[str, Any]
    results: dict[str, Any]
    curves: dict[str, Curve]

    def last(self, name: str) -> float | None:
        """The value that was logged last; None: it was not finite, or there is none."""
        return self.curves[name].points()[-1][1] if name in self.curves else None


def gather(folders: Sequence[Path]) -> list[Record]:
    """Reads the runs among the folders, each once; on stderr a line says why another is not a run.

    Runs of an experiment come last, in the order of its sweeps.

    Raises:
      ValueError: no folder is a run, or what one holds is broken.
    """
    paths = list(dict.fromkeys(Path(os.path.abspath(folder)) for folder in folders))
    sweeps = {path.parent: read_json(path.parent / SWEEPS).values() for path in paths}
    ids = {home: list(itertools.chain(*orders)) for home, orders in sweeps.items()}
    places = {home / id: (home, at) for home, order in ids.items() for at, id in enumerate(order)}
    paths.sort(key=lambda path: places.get(path, ()))
    lines = {path: f"{path} is not a run: {fault}" for path in paths if (fault := _fault(path))}
    if not (runs := [read(folder) for folder in paths if folder not in lines]):
        raise ValueError("\n".join(lines.values()))
    for folder, line in lines.items():
        if folder.name != SWEEPS:  # which `runs/experiments/NAME/*` names too
            print(line, file=sys.stderr)
    return runs


def read(folder: Path) -> Record:
    """Reads a work directory. Raises ValueError naming the file that is broken."""
    labels = read_json(folder / "run.json").get("labels", [{}])  # experiments write it
    with reading(folder / "run.json", "remove it, and its experiment writes it again"):
        first, *_ = labels
        labels = {**first}
    config = read_config(folder / CONFIG)
    return Record(folder, config, labels, read_results(folder), _curves(folder))


def read_config(path: Path | None) -> dict[str, Any]:
    """The values of a config.json by dotted key; None: the default's. It runs no rows of its own.

    Raises ValueError naming the file that is broken.
    """
    # A key that came after the run has the value by which the code did what it did before.
    config = json.loads(json.dumps(get_config().to_dict()))
    if path is None:
        return flatten(config)
    flat = flatten(config) | flatten(read_json(path))
    with reading(path, "restore it from checkpoints/STEP/config.json"):
        if any(isinstance(config.get(key), dict) for key in flat):
            raise ValueError("a section of it is a value")
        for key in ("train.steps", "seed"):
            operator.index(flat[key])
    return flat


def _curves(folder: Path) -> dict[str, Curve]:
    curves, sizes = collections.defaultdict[str, Curve](Curve), dict[str, int | None]()
    path = folder / METRICS
    for record in read_metrics(folder):
        with reading(path, f"remove the line of step {record['step']}"):
            for name, value in record.items():
                size = len(value) if isinstance(value, list) else None
                if sizes.setdefault(name, size) != size:
                    raise ValueError(f"{name} is {value!r:.80}, and not as long as before")
                value = _finite(value) if size is None else [*map(_finite, value)]
                curves[name].add(record["step"], value)
    for record in read_metrics(folder, SCORED):  # of all its checkpoints
        for name in record.keys() - {"step"}:
            if not isinstance(record[name], str):
                curves[f"checkpoints/{name}"].add(record["step"], _finite(record[name]))
    return dict(curves)


def _finite(value: Any) -> Any:
    # Raises TypeError for what is no number, OverflowError for one that is too large.
    return value if value is not None and math.isfinite(value) else None


def _fault(folder: Path) -> str | None:
    """Why a folder is not the work directory of a run, or None."""
    if is_checkpoint(folder) or is_checkpoint(folder / "0"):  # or holds them
        return "it is a part of one; give the folder that was its --workdir"
    if (folder / CONFIG).is_file():
        other = not get_config().keys() & read_json(folder / CONFIG).keys()
        return "its config.json is of something else, such as an export" if other else None
    if folder.is_file():
        return "it is a file"
    if not folder.is_dir():
        return "there is no such folder"
    if inside := sorted(path.parent for path in folder.glob(f"*/{CONFIG}")):
        return f"but it holds some; give these, as {inside[0]}"
    return f"it has no {CONFIG}, which is there once training has begun"


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is none."""
    try:
        content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is broken: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is broken: it holds a {type(content).__name__}, not an object")
    return content


def series(run: Record, name: str) -> dict[str, Any]:
    """The "steps" and "values" of a run's curve; empty where it has none."""
    points = run.curves[name].points() if name in run.curves else []
    return {"steps": [step for step, _ in points], "values": [value for _, value in points]}
