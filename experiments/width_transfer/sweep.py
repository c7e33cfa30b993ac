"""Learning rates by width, for four rules of what follows the width."""

from typing import Any

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run

BASE = 32
WIDTHS = [32, 64, 128, 256]
RATES = [2.0**exponent for exponent in range(-9, 0)]
# Of the widest model, which takes as long as all others: seeds and learning rates.
WIDEST_SEEDS, WIDEST_RATES = 1, RATES[:7]
# Of the coordinate check, which takes ten steps at one learning rate.
CHECKED_RATE = 2.0**-7


def _rules(width: int, steps: int) -> dict[str, dict[str, Any]]:
    """What each rule changes in the config of a width; at the base width, nothing."""
    growth = width / BASE
    base = {"model.base_width": BASE}
    return {
        "one rate": {},
        "by layer": {"model.parameterization": "standard_by_layer", **base},
        "mup": {"model.parameterization": "mup", **base},
        # Looked up rows are multiplied by the root of the width, which is as much of the rate.
        "embedding": {"optimizer.groups": (("embedding/*", growth**0.5, 10 / steps),)},
    }


def _runs(width: int, steps: int, measured: str, arguments: dict[str, Any]) -> list[Run]:
    at_once = {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0}
    return [
        Run(
            config=CONFIG,
            overrides=small(d_model=width, steps=steps)
            | changes
            | (at_once if measured == "coordinates" else {}),
            labels={"rule": rule, "width": width, "measured": measured},
            train=False,
            measure=arguments,
        )
        for rule, changes in _rules(width, steps).items()
        if width > BASE or rule == "one rate"  # at the base all are the same
    ]


def cpu(quick: bool) -> list[Run]:
    """Characters: three seeds, of the widest model one; and the coordinate check of all."""
    runs, steps = [], 100 if quick else 500
    for width in WIDTHS[:2] if quick else WIDTHS:
        seeds, rates = (WIDEST_SEEDS, WIDEST_RATES) if width == WIDTHS[-1] else (3, RATES)
        if quick:
            seeds, rates = 1, RATES[2:7:2]
        trained = {"learning_rates": rates, "seeds": seeds}
        checked = {"checked_rate": CHECKED_RATE, "seeds": 2 if quick else 5}
        runs += _runs(width, steps, "losses", trained)
        runs += _runs(width, steps, "coordinates", checked)
    return runs


SWEEPS = {"cpu": cpu}
