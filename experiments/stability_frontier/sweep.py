"""Learning rates in steps of half a decade, with and without warm-up, by scheme and depth."""

from experiments.harness.sweep import Run, grid

LEARNING_RATES = [1e-3, 3e-3, 1e-2, 3e-2]
SCHEMES = ["post_ln", "pre_ln", "admin", "deepnorm", "rezero", "peri_ln"]


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
        for row in grid(
            seed=[0],
            layers=[6] if quick else [6, 18],
            warmup=[0] if quick else [0, 50],
            scheme=SCHEMES[:3] if quick else SCHEMES,
            learning_rate=LEARNING_RATES[::2] if quick else LEARNING_RATES,
        )
    ]


SWEEPS = {"cpu": cpu}
