"""Positions in every attention or at the entrance, of rows and columns or of a single index."""

from experiments.harness.sweep import Run, grid

# model.positions, model.positions_in
ARMS = {
    "sines, in attention": ("sine_2d", "attention"),
    "learned, in attention": ("learned_2d", "attention"),
    "sines, at the entrance": ("sine_2d", "stream"),
    "one index, in attention": ("sinusoidal", "attention"),
}


def cpu(quick: bool) -> list[Run]:
    """The config's own training, cut to 1,000 steps."""
    steps = 40 if quick else 1000
    return [
        Run(
            config="configs/detr_shapes.py",
            overrides={
                "model.positions": ARMS[row["positions"]][0],
                "model.positions_in": ARMS[row["positions"]][1],
                "train.steps": steps,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "data.test": (),
                "seed": row["seed"],
            },
            labels=row,
        )
        for row in grid(positions=[*ARMS], seed=range(1 if quick else 3))
    ]


SWEEPS = {"cpu": cpu}
