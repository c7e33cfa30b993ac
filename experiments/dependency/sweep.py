"""Encoders at initialisation, and language models before and after training."""

from typing import Any

from experiments.harness.lab import EACH, FUSED
from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """The same schemes and depths twice: many draws, and one training run each."""
    schemes = ["post_ln", "pre_ln", "admin", "deepnorm"]
    rows = grid(layers=[6] if quick else [6, 18], scheme=schemes)
    draws = [_drawn(row, draws=3 if quick else 10) for row in rows]
    return draws + [_trained(row, steps=100 if quick else 300) for row in rows]


def _drawn(labels: dict[str, Any], draws: int) -> Run:
    """Random tokens. Admin's profiling fits the unscaled draw alone, so that it gets no other."""
    return Run(
        config="configs/masked_lm.py",
        overrides={
            "model.residual": labels["scheme"],
            "model.num_layers": labels["layers"],
            "model.d_model": 64,
            "model.num_heads": 4,
            "model.d_ff": 256,
            "model.activation": "relu",
            "model.vocab_size": 1000,
            "model.dropout_rate": 0.0,
            "model.embedding_dropout_rate": 0.0,
            "data.packing": False,
            "data.max_source_length": 32,
            "data.batch_size": 8,
        },
        labels={"model": "encoder", **labels},
        train=False,
        measure={
            "draws": draws,
            "gains": [EACH] if labels["scheme"] == "admin" else [EACH, FUSED],
        },
    )


def _trained(labels: dict[str, Any], steps: int) -> Run:
    return Run(
        config="configs/bigram_copy.py",
        overrides={
            "model.residual": labels["scheme"],
            "model.num_layers": labels["layers"],
            "train.steps": steps,
        },
        labels={"model": "language model", **labels},
        measure={"draws": 1, "gains": [EACH]},
    )


SWEEPS = {"cpu": cpu}
