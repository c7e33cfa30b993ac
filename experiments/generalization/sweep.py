"""SCAN's splits by length and by a new verb, residual schemes, and kinds of positions."""

from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """Two seeds; needs --data_dir, the folder with SCAN's splits."""
    rows = grid(
        seed=range(1 if quick else 2),
        split=["length", "addprim_jump"],
        positions=["sinusoidal", "rotary", "relative"],
        scheme=["pre_ln"] if quick else ["post_ln", "pre_ln", "admin"],
    )
    return [
        Run(
            config=f"configs/scan.py:{row['split']}",
            overrides={
                "model.residual": row["scheme"],
                "model.positions": row["positions"],
                "optimizer.name": "muon",
                "optimizer.learning_rate": 3e-3,
                "optimizer.warmup_steps": 100,
                "train.steps": 20 if quick else 1000,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "evaluate.batch_size": 256,
                "seed": row["seed"],
            },
            labels=row,
        )
        for row in rows
    ]


SWEEPS = {"cpu": cpu}
