"""Entries: files that say how a fixed model is trained, or what the model is.

A file, in `entries/` or anywhere else, is a Python file with

    TRACK       "optimisation" or "architecture"
    OVERRIDES   {dotted key: value}: what differs from the baseline, of what the track leaves free
    STEPS       of a training (optimisation only; the architecture's are fixed)
    SEEDS       optional: at least four that chose nothing of the entry (default: 100 to 107)

and, where it takes rows of its own, their tables (docs/extending.md). Its name is the file's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments.harness.plan import check
from experiments.harness.sweep import Run
from transformer_jax.config import rows
from transformer_jax.inspection.flops import model_flops

ENTRIES = Path(__file__).parent / "entries"
CONFIG = "configs/shakespeare.py"
BASELINE = "adamw"  # the entry that others are compared with, on either track
ARCHITECTURE_STEPS = 400
SEEDS = range(100, 108)
LEAST_SEEDS = 4
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
    if not isinstance(steps, int) or steps < 1 or fixed not in (None, steps):
        raise ValueError(f"{file}: STEPS is {steps}: expected {fixed or 'a number of steps'}")
    seeds = tuple(getattr(module, "SEEDS", SEEDS))
    if len(set(seeds)) < max(LEAST_SEEDS, len(seeds)):
        raise ValueError(f"{file}: SEEDS are {seeds}: expected {LEAST_SEEDS} or more, each once")
    overrides = getattr(module, "OVERRIDES", {})
    for key in overrides:
        if not key.startswith(FREE[track]) or key in _FIXED:
            raise ValueError(
                f"{file}: OVERRIDES sets {key}, which the track {track!r} fixes: it leaves free "
                f"{', '.join(FREE[track])}"
            )
    rows_file = str(file.resolve()) if any(hasattr(module, table) for table in rows.TABLES) else ""
    return Entry(file.stem, track, steps, overrides, seeds, rows_file)


def entered(file: Path, quick: bool) -> tuple[str, list[Run]]:
    """The track of an entry, and its runs. Raises ValueError for a model that is too large."""
    entry = read(file)
    if entry.track == "architecture":
        _check_size(entry, file)
    return entry.track, _runs(entry, quick)


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
    parameters = jax.tree.leaves(built.abstract_state().params)
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
