"""Residual schemes and stand-ins for norms at 12 and 24 layers, each at its best learning rate."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

# The arms, as what differs from Pre-LN.
ARMS: dict[str, dict[str, Any]] = {
    **{
        name: {"model.residual": name}
        for name in (
            "pre_ln",
            "ln_scaling",
            "post_ln",
            "peri_ln",
            "keel",
            "depth_scaled",
            "branch_ln",
            "mix_ln",
            "hybrid_norm",
        )
    },
    # nanochat trains what the stream is scaled by at a hundredth of the rate.
    "x0": {
        "model.residual": "x0",
        "optimizer.groups": (("*/stream_scale/*", 0.01, 0.0),),
    },
    "dyt": {"model.residual": "pre_ln", "model.norm": "dyt"},
    "derf": {"model.residual": "pre_ln", "model.norm": "derf"},
}
# Those of which a line says something get a third seed.
JUDGED = ("pre_ln", "ln_scaling", "x0", "dyt", "derf")
DRAWS = ["normal", "gpt2"]
RATE = 2e-3
STEPS, TRIAL = 600, 200
VALIDATION = 40_000  # bytes, a third of what smaller models are scored on


def _run(quick: bool, part: str, arm: str, layers: int, draw: str, fresh: int) -> Run:
    base = text(num_layers=layers, d_model=64, steps=20 if quick else STEPS, warmup_steps=0)
    # The rate of each step is given from outside, warm-up included.
    base |= {"optimizer.schedule": "constant", "model.init": draw}
    base |= {"data.validation_size": 4_000 if quick else VALIDATION}
    return Run(
        config=CONFIG,
        overrides=base | ARMS[arm],
        labels={"part": part, "arm": arm, "draw": draw, "layers": layers},
        train=False,
        measure={
            "start": RATE,
            "most": 1 if quick else 4,
            "fresh": 2 if quick else fresh,
            "trial": 10 if quick else TRIAL,
        },
    )


def _all(quick: bool, part: str, layers: int) -> list[Run]:
    names = ["pre_ln", "ln_scaling", "x0"] if quick else list(ARMS)
    return [_run(quick, part, name, layers, "xavier", 3 if name in JUDGED else 2) for name in names]


def shallow(quick: bool) -> list[Run]:
    """All arms, 12 layers."""
    return _all(quick, "shallow", 3 if quick else 12)


def deep(quick: bool) -> list[Run]:
    """All arms, 24 layers."""
    return _all(quick, "deep", 4 if quick else 24)


def draws(quick: bool) -> list[Run]:
    """LN scaling and Pre-LN by two draws, 24 layers."""
    return [
        _run(quick, "draws", arm, 4 if quick else 24, draw, 2)
        for arm in ("pre_ln", "ln_scaling")
        for draw in DRAWS
    ]


SWEEPS = {"shallow": shallow, "deep": deep, "draws": draws}
