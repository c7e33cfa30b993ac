"""Small decoders on repeats of a period that differs by row; each part changes one thing."""

from typing import Any

from experiments.harness.sweep import Run
from transformer_jax.models.transformer.draws import DRAWS

CONFIG = "configs/bigram_copy.py"
RATES = [1e-3, 2e-3, 4e-3]
RATE = 2e-3
LAYERS = [1, 2, 3]
SCHEMES = [
    "pre_ln",
    "post_ln",
    "peri_ln",
    "admin",
    "deepnorm",
    "rezero",
    "keel",
    "layer_scale",
    "gpt2",
    "t_fixup",
]
POSITIONS = ["learned", "sinusoidal", "rotary", "relative", "distance"]
DRAWN = ["xavier", "normal", "fan_in", "mitchell", "small"]
assert set(DRAWN) <= set(DRAWS)
# Factors on the learning rate's and the draws' counterpart: kernels twice and half as large.
WARM_UPS = [0, 100]
BETA2S = [0.95, 0.999]


def _run(part: str, arm: Any, changes: dict[str, Any], quick: bool, **measure: Any) -> Run:
    """A process that trains an arm with all of its rates and seeds."""
    base = {
        "data.source": "repeat",
        "data.max_target_length": 64,
        "data.batch_size": 32,
        "model.residual": "pre_ln",
        "model.num_layers": 2,
        "model.d_model": 64,
        "model.num_heads": 4,
        "model.d_ff": 256,
        "model.activation": "gelu",
        "model.positions": "rotary",
        "optimizer.name": "adamw",
        "optimizer.learning_rate": RATE,
        "optimizer.beta2": 0.95,
        "optimizer.clip_norm": 1.0,
        "train.steps": 60 if quick else 1_500,
        "train.log_every": 10,
    }
    seeds = 1 if quick else measure.pop("seeds", 3)
    rates = measure.pop("rates", [RATE])
    return Run(
        config=CONFIG,
        overrides=base | changes,
        labels={"part": part, "arm": arm},
        train=False,
        measure={"rates": rates[:1] if quick else rates, "seeds": seeds, "enough": 600},
    )


def depth(quick: bool) -> list[Run]:
    """One, two and three layers, five seeds."""
    layers = LAYERS[:2] if quick else LAYERS
    return [_run("depth", n, {"model.num_layers": n}, quick, seeds=5) for n in layers]


def schemes(quick: bool) -> list[Run]:
    """Residual schemes, each at three rates, three seeds."""
    names = SCHEMES[:2] if quick else SCHEMES
    return [_run("schemes", s, {"model.residual": s}, quick, rates=RATES) for s in names]


def positions(quick: bool) -> list[Run]:
    """Kinds of positions, three seeds."""
    names = POSITIONS[:2] if quick else POSITIONS
    return [
        _run("positions", p, {"model.positions": p, "model.max_length": 64}, quick)
        if p == "learned"
        else _run("positions", p, {"model.positions": p}, quick)
        for p in names
    ]


def draws(quick: bool) -> list[Run]:
    """Draws, each at three rates, three seeds."""
    names = DRAWN[:2] if quick else DRAWN
    return [_run("draws", d, {"model.init": d}, quick, rates=RATES) for d in names]


def optimizer(quick: bool) -> list[Run]:
    """With and without warm-up, by beta2, three seeds."""
    cells = [(w, b) for w in WARM_UPS for b in (BETA2S[:1] if quick else BETA2S)]
    return [
        _run(
            "optimizer",
            f"warm-up {w}, beta2 {b}",
            {"optimizer.warmup_steps": w, "optimizer.beta2": b},
            quick,
        )
        for w, b in cells
    ]


SWEEPS = {
    "depth": depth,
    "schemes": schemes,
    "draws": draws,
    "positions": positions,
    "optimizer": optimizer,
}
