"""Starts, norms and clipping."""

from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """Trained for 400 steps, and measured before and after."""
    steps = 40 if quick else 400
    rows = grid(
        scheme=["post_ln", "pre_ln"],
        start=["zeros", "queries"],
        clip=[0.1, 1.0],
        seed=range(1 if quick else 3),
    )
    return [
        Run(
            config="configs/detr_shapes.py",
            overrides={
                "model.residual": row["scheme"],
                "model.positions_in": "attention" if row["start"] == "zeros" else "stream",
                "optimizer.clip_norm": row["clip"],
                "optimizer.warmup_steps": steps // 4,
                "train.steps": steps,
                "train.log_every": 20,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "data.test": (),
                "seed": row["seed"],
            },
            labels=row,
            measure={},
        )
        for row in rows
    ]


SWEEPS = {"cpu": cpu}
