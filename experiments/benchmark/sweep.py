"""Entries: files that say how a fixed model is trained, or what the model is.

A file, in `entries/` or anywhere else, is a Python file with

    TRACK       "optimisation" or "architecture"
    OVERRIDES   {dotted key: value}: what differs from the baseline, of what the track leaves free
    STEPS       of a training, one epoch at most (optimisation only; the architecture's are fixed)
    SEEDS       optional: at least four, from 100 on, that chose nothing of the entry (default: 100
                to 107)

and, where it takes rows of its own, their tables (docs/extending.md). Its name is the file's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.harness.plan import check
from experiments.harness.results import read_json
from experiments.harness.sweep import Run
from transformer_jax.config import rows
from transformer_jax.inspection.flops import model_flops
from transformer_jax.runs.workdir import plain

ENTRIES = Path(__file__).parent / "entries"
JUDGED = "entries.json"  # in results/: all that were ever judged
CONFIG = "configs/shakespeare.py"
BASELINE = "adamw"  # the entry that others are compared with, on either track
ARCHITECTURE_STEPS = 400
SEEDS = range(100, 108)
LEAST_SEEDS = 4
EPOCH = 980  # steps
# Of the baseline's FLOPs a step and parameters, which an architecture may have.
SIZE = 1.05
# What entries change, by the starts of keys: whatever else is part of the question.
FREE = {
    "optimisation": ("optimizer.", "train.ema_decay", "model.attention_gain", "model.init"),
    "architecture": ("model.", "optimizer.learning_rate", "optimizer.groups"),
}
_FIXED = ("model.vocab_size", "model.dtype", "model.family", "model.architecture")


class Entry(NamedTuple):
    """What a file says. rows: the file, where it has rows of its own; else ""."""

    name: str
    track: str
    steps: int
    overrides: Mapping[str, Any]
    seeds: Sequence[int]
    rows: str

    @property
    def config(self) -> dict[str, Any]:
        """The overrides of all of its runs."""
        setting = {"rows": self.rows} if self.rows else {}
        return baseline(self.steps) | dict(self.overrides) | setting


def baseline(steps: int) -> dict[str, Any]:
    """The overrides of the baseline, of so many steps."""
    return {
        "data.batch_size": 16,
        "optimizer.name": "adamw",
        "optimizer.schedule": "linear",
        "optimizer.learning_rate": 4e-3,
        "optimizer.final_learning_rate": 0.0,
        "optimizer.warmup_steps": steps // 10,
        "optimizer.beta2": 0.95,
        "train.steps": steps,
        "train.log_every": 25,
        "train.evaluate_every": 0,
        "checkpoint.every": 0,
        "checkpoint.best_metric": "",
    }


def read(file: Path) -> Entry:
    """The entry of a file. Raises ValueError or OSError, naming the file, for what is none."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no entry {file}: give a Python file, as {ENTRIES}/*.py")
    module = rows.run(f"entry_{file.stem}", file)
    track = getattr(module, "TRACK", None)
    if track not in FREE:
        raise ValueError(f"{file}: TRACK is {track!r}: expected one of {', '.join(FREE)}")
    fixed = None if track == "optimisation" else ARCHITECTURE_STEPS
    steps = getattr(module, "STEPS", fixed)
    if not isinstance(steps, int) or not 1 <= steps <= EPOCH or fixed not in (None, steps):
        raise ValueError(f"{file}: STEPS is {steps}: expected {fixed or f'1 to {EPOCH}'}")
    seeds = getattr(module, "SEEDS", SEEDS)
    listed = isinstance(seeds, Sequence) and all(isinstance(seed, int) for seed in seeds)
    if not listed or len(set(seeds)) < max(LEAST_SEEDS, len(seeds)) or min(seeds) < SEEDS.start:
        raise ValueError(
            f"{file}: SEEDS are {seeds}: expected {LEAST_SEEDS} or more, each once, from "
            f"{SEEDS.start} on, which no entry is tuned by"
        )
    overrides = getattr(module, "OVERRIDES", None)
    if not isinstance(overrides, dict):
        raise ValueError(f"{file}: OVERRIDES is {overrides!r:.80}: expected a dict of keys")
    for key in overrides:
        if not key.startswith(FREE[track]) or key in _FIXED:
            raise ValueError(
                f"{file}: OVERRIDES sets {key}, which the track {track!r} fixes: it leaves free "
                f"{', '.join(FREE[track])}"
            )
    rows_file = str(file.resolve()) if any(hasattr(module, table) for table in rows.TABLES) else ""
    return Entry(file.stem, track, steps, overrides, tuple(seeds), rows_file)


def entered(file: Path, quick: bool) -> tuple[str, list[Run]]:
    """The track of an entry, and its runs. Raises ValueError for a model that is too large."""
    entry = read(file)
    _check_name(entry, file)
    if entry.track == "architecture":
        _check_size(entry, file)
    return entry.track, _runs(entry, quick)


def changes(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has other than the baseline of as many steps, but for seed and data."""
    base = baseline(overrides["train.steps"]) | {"seed": None, "data.dir": None}
    return {
        key: Path(value).name if key == "rows" else plain(value)
        for key, value in overrides.items()
        if key not in base or value != base[key] is not None
    }


def _check_name(entry: Entry, file: Path) -> None:
    """Raises ValueError where the table has another entry of this name, which stays there."""
    there = read_json(ENTRIES.parent / "results" / JUDGED).get(entry.track, {}).get(entry.name)
    ours = {"steps": entry.steps, "overrides": changes(entry.config)}
    if there and ours != {key: there[key] for key in ours}:
        raise ValueError(
            f"{file}: the table has another entry {entry.name!r}, of {there['steps']} steps with "
            f"{there['overrides'] or 'nothing'} changed, and every one stays: name the file anew"
        )


def _runs(entry: Entry, quick: bool) -> list[Run]:
    if quick:
        entry = entry._replace(steps=20, seeds=entry.seeds[:2])
    return [
        Run(
            config=CONFIG,
            overrides=entry.config | {"seed": seed},
            labels={"track": entry.track, "entry": entry.name, "steps": entry.steps, "seed": seed},
        )
        for seed in entry.seeds
    ]


def _check_size(entry: Entry, file: Path) -> None:
    sizes, baseline = map(_size, (entry, entry._replace(overrides={}, rows="")))
    for what, size in sizes.items():
        if size > SIZE * baseline[what]:
            raise ValueError(
                f"{file}: a model of {size:,.0f} {what}, {size / baseline[what]:.3f} times the "
                f"baseline's: at most {SIZE} times are allowed"
            )


def _size(entry: Entry) -> dict[str, float]:
    """FLOPs of a training step, and parameters."""
    built = check(_runs(entry, quick=False)[0], ENTRIES.parent)
    parameters = jax.tree.leaves(built.abstract_state.params)
    return {
        "FLOPs a step": model_flops(built),
        "parameters": sum(leaf.size for leaf in parameters),
    }


def _track(name: str, quick: bool) -> list[Run]:
    entries = [entry for entry in map(read, sorted(ENTRIES.glob("*.py"))) if entry.track == name]
    return [run for entry in entries[: 2 if quick else None] for run in _runs(entry, quick)]


def optimisation(quick: bool) -> list[Run]:
    """All entries of the repository that train the baseline's model."""
    return _track("optimisation", quick)


def architecture(quick: bool) -> list[Run]:
    """All that train another model for as many steps as the baseline."""
    return _track("architecture", quick)


SWEEPS = {"optimisation": optimisation, "architecture": architecture}
