"""Four small decoders, as GPT-2, Llama, Pythia and OLMo 2 are built."""

from typing import Any

from experiments.harness.sweep import Run

MEASURED = (10, 50, 150, 300)  # steps
_ROTARY = {
    "model.norm": "rms_norm",
    "model.bias": False,
    "model.activation": "swiglu",
    "model.embedding_scale": 1.0,
    "model.tied_embeddings": "none",
}
_GELU = {"model.activation": "gelu", "model.embedding_scale": 1.0}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {**_GELU, "model.residual": "gpt2", "model.positions": "learned"},
    "llama": {**_ROTARY, "model.residual": "pre_ln"},
    "gpt_neox": {
        **_GELU,
        "model.residual": "parallel",
        "model.rotary_fraction": 0.25,
        "model.attention_bias": "all",
        "model.tied_embeddings": "none",
    },
    "olmo2": {
        **_ROTARY,
        "model.residual": "branch_ln",
        "model.qk_norm": True,
        "model.qk_norm_over": "heads",
    },
}


def cpu(quick: bool) -> list[Run]:
    """A training of each, with two checkpoints at each step that is measured."""
    steps = MEASURED[:2] if quick else MEASURED
    return [
        Run(
            config="configs/language_model.py",
            overrides={
                "model.num_layers": 3,
                "model.d_model": 64,
                "model.d_ff": 256,
                "train.steps": steps[-1],
                "train.log_every": 10,
                "train.evaluate_every": 0,
                "train.diagnostics_at": steps,
                "checkpoint.every": steps[-1],
                "checkpoint.at": tuple(step + more for step in steps for more in (-1, 0)),
                "optimizer.warmup_steps": min(100, steps[-1] // 2),
            }
            | changes,
            labels={"model": name},
            measure={"steps": list(steps)},
        )
        for name, changes in MODELS.items()
    ]


SWEEPS = {"cpu": cpu}
