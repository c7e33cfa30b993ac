"""SCAN's splits by recurrent encoder-decoders, with attention and without."""

from experiments.harness.sweep import Run, grid


def cpu(quick: bool) -> list[Run]:
    """One seed; needs --data_dir, the folder with SCAN's splits."""
    rows = grid(
        seed=[0],
        split=["simple", "addprim_jump", "length"],
        model=["rnnsearch"] if quick else ["rnnencdec", "rnnsearch"],
    )
    return [
        Run(
            config=f"configs/scan_recurrent.py:{row['split']}",
            overrides={
                "model.recurrence": row["model"],
                "train.steps": 20 if quick else 1500,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "seed": row["seed"],
            },
            labels=row,
        )
        for row in rows
    ]


SWEEPS = {"cpu": cpu}
