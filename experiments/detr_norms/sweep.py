"""Norms by stack, rate and warm-up; all schemes at one rate; and the best of them over depth."""

from pathlib import Path
from typing import Any

from experiments.harness import results
from experiments.harness.sweep import Run, grid
from transformer_jax.models.transformer.schemes import SCHEMES

STEPS, WARMUP, RATE = 400, 100, 1e-3
RATES = [3e-4, RATE, 3e-3, 1e-2]
PLACES = ["post_ln", "pre_ln"]
DEPTHS = [6, 12]
SUMMARY = Path(__file__).parent / "results" / "summary.json"


def _run(labels: dict[str, Any], changes: dict[str, Any], quick: bool) -> Run:
    steps = 40 if quick else STEPS
    base = {
        "optimizer.learning_rate": labels.get("learning_rate", RATE),
        "optimizer.final_learning_rate": 0.01 * labels.get("learning_rate", RATE),
        "optimizer.warmup_steps": labels.get("warmup", WARMUP) * steps // STEPS,
        "train.steps": steps,
        "train.log_every": 20,
        "train.evaluate_every": 0,
        "checkpoint.every": 0,
        "checkpoint.best_metric": "",
        "data.test": (),
        "seed": labels["seed"],
    }
    return Run(config="configs/detr_shapes.py", overrides=base | changes, labels=labels)


def cpu(quick: bool) -> list[Run]:
    """Both parts at the config's depth."""
    seeds = range(1 if quick else 2)
    rates = RATES[1:3] if quick else RATES
    placement = [
        row
        for row in grid(
            encoder=PLACES, decoder=PLACES, learning_rate=rates, warmup=[0, WARMUP], seed=seeds
        )
        if row["warmup"] or row["encoder"] == row["decoder"]
    ]
    schemes = grid(scheme=[*SCHEMES][:: 5 if quick else 1], seed=seeds)
    return [
        *(
            _run(
                {"part": "placement", **row},
                {
                    "model.residual": row["encoder"],
                    "model.decoder_residual": row["decoder"],
                },
                quick,
            )
            for row in placement
        ),
        *(
            _run({"part": "schemes", **row}, {"model.residual": row["scheme"]}, quick)
            for row in schemes
        ),
    ]


def depth(quick: bool) -> list[Run]:
    """Post-LN and the schemes that results/summary.json names, which `cpu` writes, by layers."""
    best = results.read_json(SUMMARY).get("schemes/best", []) if not quick else PLACES
    return [
        _run(
            {"part": "depth", **row},
            {
                "model.residual": row["scheme"],
                "model.num_encoder_layers": row["layers"],
                "model.num_decoder_layers": row["layers"],
            },
            quick,
        )
        for row in grid(
            scheme=dict.fromkeys([*best, "post_ln"]),
            layers=DEPTHS[:1] if quick else DEPTHS,
            seed=range(1 if quick else 2),
        )
    ]


SWEEPS = {"cpu": cpu, "depth": depth}
