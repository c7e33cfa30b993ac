"""Placements of the norms in the three shapes, at 6 and 18 layers, at initialisation."""

from experiments.harness.lab import EACH, FUSED
from experiments.harness.sweep import Run, grid, zipped

MODELS = zipped(
    architecture=["encoder_decoder"] * 3 + ["encoder_only", "decoder_only"],
    encoder=["post_ln", "post_ln", "pre_ln", "post_ln", None],
    decoder=["post_ln", "pre_ln", "pre_ln", None, "post_ln"],
)


def cpu(quick: bool) -> list[Run]:
    """Random tokens, d_model 128; each run measures all its draws."""
    return [
        Run(
            config="configs/quickstart.py",
            overrides={
                "model.architecture": row["architecture"],
                "model.encoder_residual": row["encoder"],
                "model.decoder_residual": row["decoder"],
                "model.num_layers": row["layers"],
                "model.num_heads": 4,
                "model.vocab_size": 1000,
                "model.dropout_rate": 0.0,
                "model.embedding_dropout_rate": 0.0,
                "task.label_smoothing": 0.0,
            },
            labels=row,
            train=False,
            measure={"draws": 3 if quick else 10, "gains": [EACH, FUSED]},
        )
        for depth in grid(layers=[18] if quick else [6, 18])
        for row in ({**model, **depth} for model in MODELS)
    ]


SWEEPS = {"cpu": cpu}
