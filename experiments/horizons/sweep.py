"""Trunks at constant rates with branches and averages; schedules made for each horizon."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

RATES = [4e-3, 8e-3, 16e-3]
HORIZONS = [500, 1_000, 2_000, 4_000]
SEEDS = 3
WARM_UP = 100


def _run(quick: bool, part: str, rate: float, seed: int, changes: dict[str, Any]) -> Run:
    horizons = [100, 200] if quick else HORIZONS
    steps = horizons[-1]
    # The rate of each step is given from outside, warm-up included.
    base = text(num_layers=3, d_model=64, steps=steps, warmup_steps=0)
    base |= {"optimizer.schedule": "constant", "optimizer.weight_decay": 0.1}
    arguments = {"part": part, "rate": rate, "seed": seed, "horizons": horizons}
    return Run(
        config=CONFIG,
        overrides=base | changes,
        labels={"part": part, "rate": rate, "seed": seed},
        train=False,
        measure=arguments | {"warm_up": 20 if quick else WARM_UP},
    )


def trunks(quick: bool) -> list[Run]:
    """A constant rate, three seeds: branches of four shapes, and averages of weights."""
    cells = [(rate, seed) for rate in [2e-3, *RATES] for seed in range(SEEDS)]
    return [_run(quick, "trunk", *cell, {}) for cell in (cells[::SEEDS] if quick else cells)]


def schedules(quick: bool) -> list[Run]:
    """Cosines and lines to 0 and to a tenth, made for each horizon."""
    cells = [(rate, seed) for rate in RATES for seed in range(SEEDS)]
    return [_run(quick, "schedule", *cell, {}) for cell in (cells[::SEEDS] if quick else cells)]


def independent(quick: bool) -> list[Run]:
    """Lines to 0 and to a tenth for the longest horizon, with a decay that is as strong at all
    rates and steps: what the others have at a peak of 4e-3."""
    changes = {"optimizer.name": "adamw_independent", "optimizer.weight_decay": 0.1 * RATES[0]}
    cells = [(rate, seed) for rate in RATES for seed in range(SEEDS)]
    return [
        _run(quick, "independent", *cell, changes) for cell in (cells[::SEEDS] if quick else cells)
    ]


SWEEPS = {"trunks": trunks, "schedules": schedules, "independent": independent}
