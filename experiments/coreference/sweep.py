"""The quickstart's model, and three more seeds of it."""

from experiments.harness.sweep import Run


def cpu(quick: bool) -> list[Run]:
    """Seed 0 is the quickstart itself."""
    return [
        Run(
            config="configs/quickstart.py",
            overrides={"seed": seed},
            labels={"seed": seed},
            measure={"sentences": 64 if quick else 512},
        )
        for seed in range(1 if quick else 4)
    ]


SWEEPS = {"cpu": cpu}
