"""Sizes of a Pre-LN decoder by task; depth by hops; schemes by positions, a sweep for each task."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.harness.sweep import Run

CONFIG = "configs/bigram_copy.py"


class Task(NamedTuple):
    """A miniature.

    Attributes:
      name: its sizes, as `rows` reads them.
      length: of its longest row, the end included.
      batch_size: rows of a step.
      size: of SIZES, the one of the sweep over schemes.
    """

    name: str
    length: int
    batch_size: int
    size: str


# Layers and d_model
SIZES = {"XS": (2, 64), "S": (3, 64), "M": (4, 64)}
TASKS = {
    "depo": Task("8 1", 37, 32, "XS"),
    "brevo": Task("8", 56, 32, "XS"),
    "mano": Task("3", 10, 128, "XS"),
    "lano": Task("4", 64, 32, "XS"),
}
HOPS = "8 4"  # names and hops of Depo in `depth`; elsewhere one hop, which is learnt in time
STEPS = 1_200  # but of `depth`
LAYERS = [1, 2, 3]
SCHEMES = ["pre_ln", "post_ln", "peri_ln", "keel", "admin", "x0", "branch_ln"]
POSITIONS: dict[str, dict[str, Any]] = {
    "rotary": {"model.positions": "rotary"},
    "none": {"model.positions": "rotary", "model.layer_pattern": ("unturned",)},
}


def _run(
    quick: bool,
    labels: dict[str, Any],
    size: tuple[int, int],
    changes: dict[str, Any],
    *,
    steps: int,
    seeds: int,
) -> Run:
    task = labels["task"]
    settings, (layers, width) = TASKS[task], size
    base = {
        "rows": "experiments/miniatures/rows.py",
        "data.source": task,
        "data.name": settings.name,
        "data.max_target_length": settings.length,
        "data.batch_size": settings.batch_size,
        "evaluate.batch_size": 256,
        "model.residual": "pre_ln",
        "model.num_layers": layers,
        "model.d_model": width,
        "model.num_heads": width // 16,
        "model.d_ff": 4 * width,
        "model.activation": "gelu",
        "model.positions": "rotary",
        "optimizer.name": "adamw",
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 20 if quick else 100,
        "optimizer.beta2": 0.95,
        "optimizer.clip_norm": 1.0,
        "train.steps": 40 if quick else steps,
        "train.log_every": 10,
    }
    return Run(
        config=CONFIG,
        overrides=base | changes,
        labels=labels,
        train=False,
        measure={"seeds": 1 if quick else seeds, "read_every": 20 if quick else 100},
    )


def sizes(quick: bool) -> list[Run]:
    """Pre-LN with rotary positions, one seed: at which size is a task half solved?"""
    return [
        _run(
            quick,
            {"part": "sizes", "task": task, "size": size},
            SIZES[size],
            {},
            steps=STEPS,
            seeds=1,
        )
        for size, task in itertools.product(["XS"] if quick else SIZES, TASKS)
    ]


def depth(quick: bool) -> list[Run]:
    """Depo with one to three layers, three seeds."""
    return [
        _run(
            quick,
            {"part": "depth", "task": "depo", "layers": layers},
            (layers, 64),
            {"data.name": HOPS},
            steps=4_000,
            seeds=3,
        )
        for layers in (LAYERS[:2] if quick else LAYERS)
    ]


def schemes(task: str, quick: bool) -> list[Run]:
    """Residual schemes by kinds of positions on a task, two seeds."""
    return [
        _run(
            quick,
            {"part": task, "task": task, "scheme": scheme, "positions": positions},
            SIZES[TASKS[task].size],
            {"model.residual": scheme} | POSITIONS[positions],
            steps=STEPS,
            seeds=2,
        )
        for scheme, positions in itertools.product(SCHEMES, POSITIONS)
        if not quick or scheme in SCHEMES[:2]
    ]


SWEEPS: dict[str, Callable[[bool], list[Run]]] = {
    "sizes": sizes,
    "depth": depth,
    "depo": functools.partial(schemes, "depo"),
    "brevo": functools.partial(schemes, "brevo"),
    "mano": functools.partial(schemes, "mano"),
    "lano": functools.partial(schemes, "lano"),
}
