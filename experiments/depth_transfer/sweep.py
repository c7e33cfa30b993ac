"""Learning rates by depth, for three parameterisations of Pre-LN and for other residual schemes."""

import dataclasses
from typing import Any

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run

BASE = 3
DEPTHS = [3, 6, 12, 24]
RATES = [2.0**exponent for exponent in range(-9, -2)]
# Of the coordinate check, as in width_transfer.
CHECKED_RATE = 2.0**-7
# The exponent of the depth by which branches are divided, as a rule's name.
ALPHAS = {"alpha 0": "standard", "alpha 1/2": "depth_mup", "alpha 1": "completep"}
SCHEMES = ["post_ln", "peri_ln", "deepnorm", "rezero"]


def _run(rule: str, layers: int, changes: dict[str, Any], quick: bool) -> Run:
    return Run(
        config=CONFIG,
        overrides=small(num_layers=layers, steps=100 if quick else 500) | changes,
        labels={"rule": rule, "layers": layers},
        train=False,
        measure={
            "learning_rates": RATES[1::3] if quick else RATES,
            "seeds": 1 if quick else 2,
        },
    )


def cpu(quick: bool) -> list[Run]:
    """Pre-LN with three exponents, which are one model at the base."""
    runs = []
    for layers in DEPTHS[:2] if quick else DEPTHS:
        for rule, parameterization in ALPHAS.items():
            changes = {"model.parameterization": parameterization}
            if parameterization != "standard":
                changes |= {"model.base_width": 64, "model.base_depth": BASE}
            if layers > BASE or rule == "alpha 0":
                runs.append(_run(rule, layers, changes, quick))
    return runs


def schemes(quick: bool) -> list[Run]:
    """Other residual schemes, each with a base of its own."""
    return [
        _run(scheme, layers, {"model.residual": scheme}, quick)
        for scheme in (SCHEMES[:2] if quick else SCHEMES)
        for layers in (DEPTHS[:2] if quick else DEPTHS)
    ]


def coordinates(quick: bool) -> list[Run]:
    """How activations grow with the depth in ten steps, at one constant learning rate."""
    return [
        dataclasses.replace(
            run,
            overrides=dict(run.overrides)
            | {"optimizer.schedule": "constant", "optimizer.warmup_steps": 0},
            measure={"checked_rate": CHECKED_RATE, "seeds": 2 if quick else 5},
        )
        for run in cpu(quick)
    ]


SWEEPS = {"cpu": cpu, "schemes": schemes, "coordinates": coordinates}
