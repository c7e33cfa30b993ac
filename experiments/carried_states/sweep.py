"""The small LSTM of Zaremba et al. 2014 on WikiText-2, with states that are carried and without."""

from experiments.harness.sweep import Run, grid

_EPOCH = 400  # steps between two halvings; the whole text has 5,222


def cpu(quick: bool) -> list[Run]:
    """One seed; needs --data_dir, the folder of WikiText-2."""
    epoch = 4 if quick else _EPOCH
    return [
        Run(
            config="configs/ptb_lstm.py:wikitext2",
            overrides={
                "model.stateful": row["carried"] == "yes",
                "optimizer.stable_steps": 4 * epoch,
                "optimizer.decay_steps": epoch,
                "train.steps": 13 * epoch,
                "train.evaluate_every": 0,
                "checkpoint.every": 500,
                "checkpoint.best_metric": "",
                "seed": row["seed"],
            },
            labels=row,
            measure={"split": "test"},
        )
        for row in grid(seed=[0], carried=["yes", "no"])
    ]


SWEEPS = {"cpu": cpu}
JOBS = 1  # on one core
