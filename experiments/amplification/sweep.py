"""All schemes on encoders of 1 to 100 layers; one run measures all depths and draws of a scheme."""

from experiments.harness.sweep import Run, grid
from transformer_jax.models.transformer.schemes import SCHEMES

LAYERS = [1, 3, 6, 12, 18, 30, 50, 100]


def cpu(quick: bool) -> list[Run]:
    """Encoders at initialisation; two sublayers a layer."""
    return [
        Run(
            config="configs/masked_lm.py",
            overrides={
                "model.residual": row["scheme"],
                "model.d_model": 64,
                "model.num_heads": 4,
                "model.d_ff": 256,
                "model.activation": "relu",
                "model.vocab_size": 1000,
                "model.dropout_rate": 0.0,
                "model.embedding_dropout_rate": 0.0,
            },
            labels=row,
            train=False,
            measure={"layers": [1, 6, 18, 50], "draws": 10}
            if quick
            else {"layers": LAYERS, "draws": 20},
        )
        for row in grid(scheme=["post_ln", "pre_ln", "admin", "deepnorm"] if quick else SCHEMES)
    ]


SWEEPS = {"cpu": cpu}
