"""A small encoder on sums modulo 97: weight decays, residual schemes and optimizers."""

from typing import Any

from experiments.grokking.measure import TEST, TRAIN
from experiments.harness.sweep import Run

CONFIG = "configs/classify.py"
MODULUS, SHARE = 97, 0.3
STEPS, MORE_STEPS = 6_000, 10_000
RATE, DECAY = 1e-3, 3.0
DECAYS = [0.0, 0.1, 0.3, 1.0, 3.0, 10.0]
SCHEMES = [
    "pre_ln",
    "post_ln",
    "peri_ln",
    "admin",
    "rezero",
    "t_fixup",
    "deepnorm",
    "branch_ln",
]
# Learning rates; of each the weight decay is such that a step takes as much off the weights.
OPTIMIZERS = {"adamw": RATE, "lion": 3e-4, "muon": 3e-3}


def _run(
    quick: bool, part: str, arm: Any, rate: float, decay: float, steps: int, **overrides: Any
) -> Run:
    """A process that trains an arm with all of its seeds."""
    base = {
        "data.source": "labelled",
        "data.train": (TRAIN,),
        "data.validation": (TEST,),
        "data.test": (TRAIN,),  # to be scored, too
        "data.max_source_length": 4,  # two words between bos and eos
        "data.packing": False,
        "data.batch_size": 512,
        "model.residual": "pre_ln",
        "model.num_layers": 1,
        "model.d_model": 64,
        "model.d_ff": 256,
        "model.activation": "gelu",
        "model.positions": "learned",
        "model.max_length": 4,
        "model.dropout_rate": 0.0,
        "model.embedding_dropout_rate": 0.0,
        "optimizer.name": "adamw",
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 10,
        "optimizer.weight_decay": decay,
        "train.steps": 60 if quick else steps,
        "evaluate.batch_size": 1_000,
    }
    return Run(
        config=CONFIG,
        overrides=base | {key.replace("__", "."): value for key, value in overrides.items()},
        labels={"part": part, "arm": arm},
        train=False,
        measure={
            "modulus": MODULUS,
            "share": SHARE,
            "rate": rate,
            "seeds": [0] if quick else [0, 1, 2],
            "read_every": 20,
        },
    )


def decay(quick: bool) -> list[Run]:
    """Weight decays, Pre-LN and AdamW, three seeds."""
    decays = DECAYS[:2] if quick else DECAYS
    return [_run(quick, "decay", each, RATE, each, STEPS) for each in decays]


def schemes(quick: bool) -> list[Run]:
    """Residual schemes at a decay of 3, three seeds."""
    names = SCHEMES[:2] if quick else SCHEMES
    return [
        _run(quick, "schemes", name, RATE, DECAY, MORE_STEPS, model__residual=name)
        for name in names
    ]


def optimizers(quick: bool) -> list[Run]:
    """Optimizers that take equal shares off the weights, three seeds."""
    names = ["adamw", "lion"] if quick else list(OPTIMIZERS)
    return [
        _run(
            quick,
            "optimizers",
            name,
            OPTIMIZERS[name],
            DECAY * RATE / OPTIMIZERS[name],
            MORE_STEPS,
            optimizer__name=name,
        )
        for name in names
    ]


SWEEPS = {"decay": decay, "schemes": schemes, "optimizers": optimizers}
