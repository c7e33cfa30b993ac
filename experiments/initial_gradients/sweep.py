"""Post-LN and Pre-LN in two architectures; a run measures all depths and draws."""

from experiments.harness.sweep import Run, grid

LAYERS = [6, 12, 24, 48, 96]


def cpu(quick: bool) -> list[Run]:
    """Random tokens, d_model 128, without dropout."""
    return [
        Run(
            config="configs/quickstart.py",
            overrides={
                "model.architecture": row["architecture"],
                "model.residual": row["scheme"],
                "model.num_heads": 4,
                "model.vocab_size": 1000,
                "model.dropout_rate": 0.0,
                "model.embedding_dropout_rate": 0.0,
                "task.label_smoothing": 0.0,
            },
            labels=row,
            train=False,
            measure={"layers": LAYERS[:3] if quick else LAYERS, "draws": 3 if quick else 10},
        )
        for row in grid(architecture=["encoder_only", "decoder_only"], scheme=["post_ln", "pre_ln"])
    ]


SWEEPS = {"cpu": cpu}
