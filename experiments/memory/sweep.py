"""Lengths of segments by lengths of memory, on tiny Shakespeare."""

from experiments.harness.sweep import Run, grid

_TOKENS = 2048  # characters of a step
_SCORED = (0, 32, 64, 128, 256)  # lengths of memory when a trained model is scored


def cpu(quick: bool) -> list[Run]:
    """Three seeds; needs --data_dir, the folder of tiny Shakespeare's input.txt."""
    rows = grid(
        seed=[0, 1, 2],
        segment=[32, 64],
        memory=[0, 64],
    )
    return [
        Run(
            config="configs/shakespeare_xl.py",
            overrides={
                "data.max_target_length": row["segment"],
                "data.batch_size": _TOKENS // row["segment"],
                "model.memory_length": row["memory"],
                "train.steps": 40 if quick else 1000,
                "train.evaluate_every": 0,
                "checkpoint.every": 0,
                "checkpoint.best_metric": "",
                "seed": row["seed"],
            },
            labels=row,
            measure={
                "memories": _SCORED if row["memory"] else (0,),
                "contexts": sorted({row["segment"], row["segment"] + row["memory"]}),
                "characters": 256 if quick else 2048,
            },
        )
        for row in rows
    ]


SWEEPS = {"cpu": cpu}
JOBS = 1  # they take times
