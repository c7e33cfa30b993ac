"""Runs as data. A folder's `sweep.py` lists its runs with `Run`, `grid` and `zipped`.

A folder `experiments/NAME/` asks one question, and holds:

    __init__.py   the question, as docstring; in this repository also its SUBJECT, under which
                  experiments/README.md lists its claims (docs/tables.py has them all)
    README.md     sections Question, Protocol, Results, Conclusion, What it does not show; Results
                  holds the lines `<!-- generated: SWEEP -->` and `<!-- end: SWEEP -->` of each
                  sweep, and what stands between them is written by `report.py`
    sweep.py      SWEEPS: {name: function(quick) -> list of runs}; the first is what the plain
                  command runs, others need something more (data, a GPU); JOBS = 1 where runs
                  take times, so that none disturbs another
    measure.py    where runs are measured: measure(config, workdir, **arguments) -> list of rows,
                  each {name: number or text}; workdir holds the checkpoints of a trained run;
                  what measures share is in `lab`
    rows.py       SCHEMES, PROBES, SOURCES, OPTIMIZERS, SCHEDULES: rows of the experiment's own,
                  which its runs may name (see docs/extending.md)
    report.py     report(runs, out) -> markdown for the README; writes csv, figures and
                  summary.json into `out` (see `results` and `figures`)
    results/      what the report wrote, committed

`./launch.sh experiment NAME --new` makes such a folder, whose `sweep.py` is an example. Only
`sweep.py` has to be there: `default_report` takes the place of `report.py`, and a README that lacks
the two lines gets them.

A run is trained (`train`, through the command line), measured (`measure`, the arguments of the
folder's function), or first trained and then measured. Runs that are only trained share a process,
one after the other, and what it has compiled; what is measured is a process of its own, which takes
seconds to start, so that what takes less (a seed, a depth) belongs inside `measure`. What a run is
called depends on its content alone: a change of labels, or of the order of runs, makes nothing run
again; nor does a new key of the default config. A change of the code of `measure` does not either:
remove the work directories then.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformer_jax.config import load as overrides
from transformer_jax.config import rows
from transformer_jax.configs import default
from transformer_jax.configs.default import Config
from transformer_jax.runs.workdir import plain

ROOT = Path(__file__).parents[2]
# Keys whose change alone makes nothing run again: data is moved more often than changed.
FOLDERS = ("data.dir", "data.cache_dir", "checkpoint.fork_from")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a sweep.

    Attributes:
      config: a config file relative to the repository, as "configs/bigram_copy.py" (or "FILE:ARG").
      overrides: {dotted key: value}, as `overrides.load` takes them.
      labels: {name: number or text} that the report groups by (scheme, layers, seed, ...). Runs
        that differ in nothing else are run once: a baseline may stand in two grids.
      train: whether the run is trained.
      measure: the arguments of the folder's `measure.measure` (plain values); None: not measured.
      fork_from: the run of the same sweep that this one branches off from once that has ended, with
        all of its state. Its own config is told as if it stood alone.
      fork_step: the step of fork_from's checkpoint (see `checkpoint.at`); None: of its last.
    """

    config: str
    overrides: Mapping[str, Any]
    labels: Mapping[str, Any]
    train: bool = True
    measure: Mapping[str, Any] | None = None
    fork_from: "Run | None" = None
    fork_step: int | None = None

    def __post_init__(self):
        if self.fork_from is not None and not (self.train and self.fork_from.train):
            raise ValueError(f"the run {self} or what it is a fork of is not trained")
        if not self.train and self.measure is None:
            raise ValueError(f"the run {self} does nothing: train it, or give arguments to measure")

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.labels.items())

    @functools.cached_property
    def resolved(self) -> Config:
        """The checked config, frozen. Raises ValueError naming the run."""
        try:
            return overrides.load(str(ROOT / self.config), self.overrides)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"the run {self}: {error}") from error

    @functools.cached_property
    def id(self) -> str:
        """Twelve hexadecimal digits that stand for what the run does.

        They depend on what differs from the default config (folders, checkpoints, evaluation and
        decoding left out), on `train`, `measure` and the fork; not on `labels`. So a key that is
        added to the default config changes no id.
        """
        changes = overrides.changes(default.get_config(), self.resolved)
        # A report reads the log, so the intervals at which it is written count.
        intervals = {key: value for key, (_, value) in changes.items() if key.startswith("train.")}
        config = overrides.identity(self.resolved) | intervals
        parts = [config, self.train, self.measure]
        if self.fork_from is not None:
            parts += [self.fork_from.id, self.fork_step]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @functools.cached_property
    def measured(self) -> dict[str, Any]:
        """What differs from the default config, folders left out: {dotted key: value for JSON}.

        Unlike the id, it includes evaluation, decoding, checkpoints and the mesh, on which
        measurements may depend.
        """
        changes = overrides.changes(default.get_config(), self.resolved)
        return plain({key: new for key, (_, new) in changes.items() if key not in FOLDERS})


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination, the last name varying fastest: `grid(layers=[6, 18], seed=range(3))`."""
    return [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]


def zipped(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """The first of each, the second of each, and so on. Raises ValueError for unequal lengths."""
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def part(folder: Path, name: str) -> ModuleType:
    """The module `name` ("sweep", "measure", "report") of a folder, wherever the folder lies.

    Raises FileNotFoundError when the folder has no such part, ValueError when it cannot be run.
    """
    path = folder / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {path}: see experiments/harness/sweep.py for what it holds"
        )
    return rows.run(f"experiments.{folder.name}.{name}", path)
