"""Learning rates in steps of half a decade, with and without warm-up, by scheme and depth."""

from experiments.sweep import Run, grid

LEARNING_RATES = [1e-3, 3e-3, 1e-2]
SCHEMES = ["post_ln", "pre_ln", "admin", "deepnorm"]
# Layers, and steps of warm-up.
SETTINGS = [(6, 0), (18, 0), (18, 50)]


def cpu(quick: bool) -> list[Run]:
    """Synthetic words: 150 steps at a constant learning rate, after warm-up where there is one."""
    return [
        Run(
            config="configs/bigram_copy.py",
            overrides={
                "model.residual": row["scheme"],
                "model.num_layers": row["layers"],
                "optimizer.learning_rate": row["learning_rate"],
                "optimizer.warmup_steps": row["warmup"],
                "train.steps": 60 if quick else 150,
                "seed": row["seed"],
            },
            labels=row,
        )
        for layers, warmup in SETTINGS[: 1 if quick else None]
        for row in grid(
            seed=[0],
            layers=[layers],
            warmup=[warmup],
            scheme=SCHEMES[:3] if quick else SCHEMES,
            learning_rate=LEARNING_RATES[::2] if quick else LEARNING_RATES,
        )
    ]


SWEEPS = {"cpu": cpu}
