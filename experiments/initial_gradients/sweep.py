"""Two schemes in two architectures, then all schemes; a run measures all depths and draws."""

from experiments.harness.sweep import Run, grid
from transformer_jax.models.transformer.schemes import SCHEMES

LAYERS = [6, 12, 24, 48, 96]


def _run(architecture: str, scheme: str, quick: bool) -> Run:
    """Random tokens, d_model 128, without dropout."""
    return Run(
        config="configs/quickstart.py",
        overrides={
            "model.architecture": architecture,
            "model.residual": scheme,
            "model.num_heads": 4,
            "model.vocab_size": 1000,
            "model.dropout_rate": 0.0,
            "model.embedding_dropout_rate": 0.0,
            "task.label_smoothing": 0.0,
        },
        labels={"architecture": architecture, "scheme": scheme},
        train=False,
        measure={"layers": LAYERS[:3] if quick else LAYERS, "draws": 3 if quick else 10},
    )


def cpu(quick: bool) -> list[Run]:
    """The two that the theorem is about."""
    pairs = grid(architecture=["encoder_only", "decoder_only"], scheme=["post_ln", "pre_ln"])
    return [_run(**pair, quick=quick) for pair in pairs]


def schemes(quick: bool) -> list[Run]:
    """All schemes, as language models."""
    return [_run("decoder_only", scheme, quick) for scheme in list(SCHEMES)[: 3 if quick else None]]


SWEEPS = {"cpu": cpu, "schemes": schemes}
