"""Four ways to place and scale norms, over learning rates."""

from experiments.harness.sweep import Run, grid

ARMS = {
    "pre_ln": {"model.residual": "pre_ln"},
    "pre_ln, QK-norm": {"model.residual": "pre_ln", "model.qk_norm": True},
    "layer_scale": {"model.residual": "layer_scale"},
    "post_ln": {"model.residual": "post_ln"},
}
RATES = [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]


def cpu(quick: bool) -> list[Run]:
    """Half of the config's own training."""
    steps = 40 if quick else 500
    return [
        Run(
            config="configs/vit_digits.py",
            overrides={
                **ARMS[row["arm"]],
                "optimizer.learning_rate": row["learning_rate"],
                "train.steps": steps,
                "train.log_every": 20,
                "train.diagnostics_every": 20 if quick else 100,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "data.test": (),
                "seed": row["seed"],
            },
            labels=row,
        )
        for row in grid(
            arm=[*ARMS], learning_rate=RATES[::3] if quick else RATES, seed=range(1 if quick else 2)
        )
    ]


SWEEPS = {"cpu": cpu}
