"""Small decoders on bigram-backcopy: every residual scheme, remedies, one long run; and text."""

from typing import Any

from experiments.harness.small import CONFIG as TEXT_CONFIG
from experiments.harness.small import text
from experiments.harness.sweep import Run
from transformer_jax.models.transformer.schemes import SCHEMES

CONFIG = "configs/bigram_copy.py"
RATES = [1e-3, 3e-3]
_RMS = {"model.norm": "rms_norm"}
# What is said to prevent sinks, or to bring more of them.
REMEDIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sink logit": {"model.attention_weights": "sink"},
    "off by one": {"model.attention_weights": "off_by_one"},
    "gate": {"model.attention_gate": "head"},
    "sigmoid": {"model.attention_weights": "sigmoid"},
    "ReLU": {"model.attention_weights": "relu"},
    "SGD": {"optimizer.name": "sgd", "optimizer.epsilon": 1e-9, "optimizer.beta2": 0.98},
    "decay 1": {"optimizer.weight_decay": 1.0},
    "RMS norm": _RMS,
    "QK norm": {"model.qk_norm": True},
}
_BOTH = ("plain", "sink logit", "off by one", "gate", "sigmoid", "ReLU")
SGD_RATES = [0.1, 1.0]
TEXT_SCHEMES = ["pre_ln", "post_ln", "peri_ln", "admin"]


def _run(
    quick: bool, part: str, scheme: str, arm: str, layers: int, changes: dict[str, Any], **plan: Any
) -> Run:
    steps = plan.pop("steps", 2_000)
    base = {
        "data.source": "backcopy",
        "data.max_target_length": 64,
        "data.batch_size": 32,
        "model.residual": scheme,
        "model.num_layers": layers,
        "model.d_model": 64,
        "model.num_heads": 1,
        "model.d_ff": 256,
        "model.activation": "gelu",
        "model.positions": "rotary",
        "optimizer.name": "adamw",
        "optimizer.beta2": 0.95,
        "optimizer.clip_norm": 1.0,
        "train.steps": 60 if quick else steps,
        "train.log_every": 10,
    }
    rates = plan.pop("rates", RATES)
    return Run(
        config=CONFIG,
        overrides=base | changes,
        labels={"part": part, "scheme": scheme, "arm": arm},
        train=False,
        measure={
            "rates": rates[:1] if quick else rates,
            "seeds": list(range(1 if quick else plan.pop("seeds", 3))),
            "chosen_after": 20 if quick else 300,
            "read_every": 20 if quick else 100,
        },
    )


def gate(quick: bool) -> list[Run]:
    """Pre-LN for 6,000 steps: are there massive activations at all?"""
    return [_run(quick, "gate", "pre_ln", "plain", 3, {}, steps=6_000, rates=RATES[1:], seeds=1)]


def schemes(quick: bool) -> list[Run]:
    """All residual schemes, three layers."""
    names = ["pre_ln", "post_ln"] if quick else list(SCHEMES)
    return [_run(quick, "schemes", name, "plain", 3, {}) for name in names]


def remedies(quick: bool) -> list[Run]:
    """One layer: what is said to prevent sinks, with Pre-LN and some with Peri-LN."""
    cells = [("pre_ln", arm) for arm in REMEDIES] + [("peri_ln", arm) for arm in _BOTH]
    return [
        _run(
            quick,
            "remedies",
            scheme,
            arm,
            1,
            REMEDIES[arm],
            rates=SGD_RATES if arm == "SGD" else RATES,
        )
        for scheme, arm in (cells[:5] if quick else cells)  # all that a line speaks of
    ]


def words(quick: bool) -> list[Run]:
    """Bytes of WikiText-2, four layers, two seeds: each a run of its own, as they are long."""
    base = text(num_layers=4, d_model=128, steps=100 if quick else 3_000, warmup_steps=20)
    base |= {"data.max_target_length": 128}
    return [
        Run(
            config=TEXT_CONFIG,
            overrides=base | {"model.residual": scheme},
            labels={"part": "words", "scheme": scheme, "arm": "plain", "seed": seed},
            train=False,
            measure={
                "rates": [2e-3],
                "seeds": [seed],
                "chosen_after": 0,
                "read_every": 20 if quick else 100,
            },
        )
        for seed in range(1 if quick else 2)
        for scheme in (TEXT_SCHEMES[:1] if quick else TEXT_SCHEMES)
    ]


SWEEPS = {"gate": gate, "schemes": schemes, "remedies": remedies, "words": words}
