"""Depth, three times; the paper's grid without warm-up in miniature; and Multi30k."""

from typing import Any

from experiments.harness.lab import FUSED
from experiments.harness.sweep import Run, grid

PAPER = ["post_ln", "pre_ln", "admin"]  # the schemes that Liu et al. 2020 compare


def cpu(quick: bool) -> list[Run]:
    """Synthetic words: schemes by depth over seeds, then learning rates by beta2 at six layers.

    Schemes by depth come in three kinds: logits by their own kernel, with query, key and value
    drawn as one matrix or separately; and logits by the token table.
    """
    rows = grid(
        seed=range(1 if quick else 3),
        layers=[6, 18] if quick else [6, 18, 36],
        scheme=[*PAPER, "deepnorm"],
    )
    untied = {"model.tied_embeddings": "none", "train.steps": 100 if quick else 200}
    as_one = {**untied, "model.attention_gain": FUSED}  # as fairseq, and so the paper
    by_depth = [_bigram_copy({"part": "as_one", **row}, as_one) for row in rows]
    if not quick:
        by_depth += [_bigram_copy({"part": "depth", **row}, untied) for row in rows]
        by_depth += [_bigram_copy({"part": "tied", **row}, {}) for row in rows]
    by_optimizer = [
        _bigram_copy(
            {"part": "grid", "layers": 6, "seed": 0, **row},
            {
                "optimizer.learning_rate": row["learning_rate"],
                "optimizer.beta2": row["beta2"],
                "train.steps": 100 if quick else 200,
            },
        )
        for row in grid(
            learning_rate=[1e-3, 3e-3] if quick else [3e-4, 1e-3, 3e-3],
            beta2=[0.98] if quick else [0.98, 0.999],
            scheme=PAPER,
        )
    ]
    return by_depth + by_optimizer


def long(quick: bool) -> list[Run]:
    """The first part of `cpu` for 2000 steps, in which what is only late has time."""
    changes = {
        "model.tied_embeddings": "none",
        "model.attention_gain": FUSED,
        "train.steps": 100 if quick else 2000,
        "train.log_every": 20,
    }
    rows = grid(
        seed=range(1 if quick else 2),
        layers=[6] if quick else [6, 18, 36],
        scheme=[*PAPER, "deepnorm"],
    )
    return [_bigram_copy({"part": "long", **row}, changes) for row in rows]


def multi30k(quick: bool) -> list[Run]:
    """A small translator, deep for its width, for a few hundred steps; needs --data_dir."""
    changes = {
        "data.batch_size": 16,
        "optimizer.schedule": "constant",
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup_steps": 0,
        "train.steps": 40 if quick else 400,
    }
    rows = grid(scheme=PAPER, layers=[12], seed=[0])
    return [_multi30k({"part": "multi30k", **row}, changes) for row in rows]


def multi30k_long(quick: bool) -> list[Run]:
    """Narrow translators by the config's own recipe for a fifth of its steps; needs --data_dir."""
    changes = {
        "model.d_model": 64,
        "optimizer.warmup_steps": 8 if quick else 240,
        "train.steps": 40 if quick else 1200,
        "checkpoint.every": 200,
    }
    rows = grid(
        seed=range(1 if quick else 2),
        layers=[6] if quick else [6, 12],
        scheme=PAPER,
    )
    return [_multi30k({"part": "multi30k_long", **row}, changes) for row in rows]


def gpu(quick: bool) -> list[Run]:
    """The paper's 18-18 layers at d_model 512, on Multi30k; needs --data_dir and a GPU."""
    return [
        Run(
            config="configs/multi30k_18_18.py",
            overrides={
                "model.residual": row["scheme"],
                "seed": row["seed"],
                **({"train.steps": 100} if quick else {}),
            },
            labels={"part": "gpu", **row},
        )
        for row in grid(scheme=PAPER, layers=[18], seed=[0])
    ]


def _bigram_copy(labels: dict[str, Any], overrides: dict[str, Any]) -> Run:
    return Run(
        config="configs/bigram_copy.py",
        overrides={
            "model.residual": labels["scheme"],
            "model.num_layers": labels["layers"],
            "seed": labels["seed"],
            **overrides,
        },
        labels=labels,
    )


def _multi30k(labels: dict[str, Any], overrides: dict[str, Any]) -> Run:
    return Run(
        config="configs/multi30k.py",
        overrides={
            "model.residual": labels["scheme"],
            "model.num_layers": labels["layers"],
            "model.dropout_rate": 0.1,
            "model.embedding_dropout_rate": 0.1,
            "data.test": (),
            "train.log_every": 20,
            "train.evaluate_every": 0,
            "checkpoint.average_last": 1,
            "decode.method": "greedy",
            "decode.extra_length": 10,
            "seed": labels["seed"],
            **overrides,
        },
        labels=labels,
    )


SWEEPS = {
    "cpu": cpu,
    "long": long,
    "multi30k": multi30k,
    "multi30k_long": multi30k_long,
    "gpu": gpu,
}
