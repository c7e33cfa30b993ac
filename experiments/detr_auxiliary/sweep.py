"""Decoders of 1 to 6 layers, with the losses of all layers and with that of the last alone."""

from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """The config's own training, cut to 1,000 steps; AP is measured by decoder layer."""
    steps = 40 if quick else 1000
    rows = grid(
        layers=[1, 3] if quick else [1, 3, 6],
        auxiliary=["yes", "no"],
        seed=range(1 if quick else 3),
    )
    return [
        Run(
            config="configs/detr_shapes.py",
            overrides={
                "model.num_decoder_layers": row["layers"],
                "task.auxiliary_losses": row["auxiliary"] == "yes",
                "train.steps": steps,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "data.test": (),
                "seed": row["seed"],
            },
            labels=row,
            measure={"split": "validation"},
        )
        for row in rows
        if row["layers"] > 1 or row["auxiliary"] == "yes"  # of one layer they are the same
    ]


SWEEPS = {"cpu": cpu}
