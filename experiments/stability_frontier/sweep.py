"""Learning rates in steps of half a decade, with and without warm-up, by scheme and depth."""

from typing import Any

from experiments.harness.sweep import Run, grid
from transformer_jax.models.transformer.schemes import SCHEMES as ALL_SCHEMES

LEARNING_RATES = [1e-3, 3e-3, 1e-2, 3e-2]
SCHEMES = ["post_ln", "pre_ln", "admin", "deepnorm", "rezero", "peri_ln"]


def cpu(quick: bool) -> list[Run]:
    """Synthetic words: 150 steps at a constant learning rate, after warm-up where there is one."""
    return [
        _run(row, 60 if quick else 150)
        for row in grid(
            seed=[0],
            layers=[6] if quick else [6, 18],
            warmup=[0] if quick else [0, 50],
            scheme=SCHEMES[:3] if quick else SCHEMES,
            learning_rate=LEARNING_RATES[::2] if quick else LEARNING_RATES,
        )
    ]


def long(quick: bool) -> list[Run]:
    """All schemes for 1000 steps after warm-up: three seeds at six layers."""
    return [
        _run({"part": "long", **row}, 60 if quick else 1000)
        for row in grid(
            seed=range(1 if quick else 3),
            layers=[6],
            warmup=[50],
            scheme=[*ALL_SCHEMES][:2] if quick else [*ALL_SCHEMES],
            learning_rate=LEARNING_RATES[::2] if quick else [*LEARNING_RATES, 1e-1],
        )
    ]


def _run(labels: dict[str, Any], steps: int) -> Run:
    return Run(
        config="configs/bigram_copy.py",
        overrides={
            "model.residual": labels["scheme"],
            "model.num_layers": labels["layers"],
            "optimizer.learning_rate": labels["learning_rate"],
            "optimizer.warmup_steps": labels["warmup"],
            "train.steps": steps,
            "seed": labels["seed"],
        },
        labels=labels,
    )


SWEEPS = {"cpu": cpu, "long": long}
