"""Language models of 64 tokens with each kind of positions, read at up to four times the length."""

from experiments.harness.sweep import Run, grid

POSITIONS = ["sinusoidal", "learned", "rotary"]
LENGTH = 64  # tokens of a training text: two pieces of 16 words and their copy


def cpu(quick: bool) -> list[Run]:
    """Three seeds; the quick sweep has one, and a third of the steps."""
    return [
        Run(
            config="configs/bigram_copy.py",
            overrides={
                "model.positions": row["positions"],
                "model.residual": "pre_ln",
                "model.num_layers": 2,
                "data.max_target_length": LENGTH,
                "data.batch_size": 16,
                "optimizer.learning_rate": 3e-3,
                "optimizer.warmup_steps": 50,
                "train.steps": 500 if quick else 1500,
                "train.log_every": 50,
                "seed": row["seed"],
                **({"model.max_length": 4 * LENGTH} if row["positions"] == "learned" else {}),
            },
            labels=row,
            measure={"length": 4 * LENGTH},
        )
        for row in grid(positions=POSITIONS, seed=range(1 if quick else 3))
    ]


SWEEPS = {"cpu": cpu}
