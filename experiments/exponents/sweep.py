"""Widths by numbers of tokens of `zipf`: for isoFLOP curves, the data's exponent, and collapse."""

from typing import Any

from experiments.harness.sweep import Run
from transformer_jax.data.corpora import zipf

CONFIG = "configs/bigram_copy.py"
EXPONENT = "0.5"
RATE = 1.6e-2  # of the base width, from which searches start
BASE = 32
HEAD_DIM = 8
FIXED = 128  # steps of a warm-up that is the same for all
# Steps by width, within equal budgets.
GRID = {
    16: [256, 512, 1_024, 2_048],
    24: [128, 256, 512, 1_024, 2_048],
    32: [64, 128, 256, 512, 1_024, 2_048],
    48: [32, 64, 128, 256, 512, 1_024],
    64: [32, 64, 128, 256, 512, 1_024],
    96: [32, 64, 128, 256, 512],
}
DATA_WIDTH, DATA_STEPS = 96, [128, 256, 512, 1_024, 2_048]
# Steps in proportion to the parameters of the layers.
LADDER = {16: 128, 24: 288, 32: 512, 48: 1_152}
ARMS = {
    "muP, line": ("mup", "linear"),
    "muP, constant": ("mup", "constant"),
    "standard, line": ("standard", "linear"),
}


def _run(
    width: int, steps: int, name: str, labels: dict[str, Any], rule: str = "mup", **measure: Any
) -> Run:
    """A process that trains a width to all of its numbers of steps. The rate comes from outside."""
    overrides = {
        "data.source": "zipf",
        "data.name": name,
        "data.max_target_length": zipf.LENGTH,
        "data.batch_size": 16,
        "model.residual": "pre_ln",
        "model.num_layers": 2,
        "model.d_model": width,
        "model.num_heads": width // HEAD_DIM,
        "model.head_dim": HEAD_DIM,
        "model.d_ff": 4 * width,
        "model.activation": "gelu",
        "model.positions": "rotary",
        "model.tied_embeddings": "none",
        "optimizer.name": "adam",
        "optimizer.beta2": 0.95,
        "optimizer.clip_norm": 1.0,
        "train.steps": steps,
    }
    if rule != "standard":
        overrides |= {"model.parameterization": rule, "model.base_width": BASE}
    return Run(
        config=CONFIG,
        overrides=overrides,
        labels={"width": width} | labels,
        train=False,
        measure=measure,
    )


def _horizons(quick: bool, width: int, steps: list[int], name: str, tuned: bool) -> Run:
    steps = [each // 16 for each in steps[-2:]] if quick else steps
    labels = {"part": "horizons", "a": name, "corrected": tuned}
    search = {"most": (3 if quick else 4) if tuned else 1, "fresh": 1 if quick else 2}
    warm_up = None if tuned else FIXED
    measure: dict[str, Any] = {"horizons": steps, "rate": RATE, "warm_up": warm_up} | search
    return _run(width, steps[-1], name, labels, part="horizons", **measure)


def grid(quick: bool) -> list[Run]:
    """Six widths: one rate and warm-up for all, and a tuned rate with a warm-up in proportion."""
    widths = [16, 24, 32, 48] if quick else GRID
    return [
        _horizons(quick, width, GRID[width], EXPONENT, tuned)
        for width in widths
        for tuned in (False, True)
    ]


def data(quick: bool) -> list[Run]:
    """The widest, tuned, to more tokens: of two exponents of frequencies."""
    width = 16 if quick else DATA_WIDTH
    return [_horizons(quick, width, DATA_STEPS, name, True) for name in ("0.5", "1")]


def ladder(quick: bool) -> list[Run]:
    """Four widths with steps in proportion to their size: losses on the way, five seeds."""
    widths = list(LADDER)[:2] if quick else LADDER
    runs = []
    for width in widths:
        for arm, (rule, shape) in ARMS.items():
            steps = LADDER[width] // (4 if quick else 1)
            measure = {"rate": RATE, "shape": shape, "seeds": 2 if quick else 5}
            labels = {"part": "ladder", "arm": arm}
            runs.append(_run(width, steps, EXPONENT, labels, rule, part="ladder", **measure))
    return runs


SWEEPS = {"grid": grid, "data": data, "ladder": ladder}
