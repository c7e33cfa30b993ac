"""Weight decays by how often a fifth of tiny Shakespeare is read, by width and learning rate."""

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

DECAYS = [0.0, 0.1, 0.3, 1.0, 3.0, 10.0]
STANDARD = 0.1
WIDTHS = [32, 64, 128]
RATE, SLOWER = 4e-3, 1e-3
VALIDATION = 40_000  # characters
BATCHES = 196  # of 1,024 characters: an epoch


def _run(
    quick: bool, epochs: int, width: int, rate: float, seeds: int, fresh: int, readings: int
) -> Run:
    """A process that trains a width with all decays. seeds: of each; fresh: of the standard decay
    and the best one."""
    batches = 10 if quick else BATCHES
    steps = epochs * batches
    base = text(num_layers=3, d_model=width, steps=steps, warmup_steps=batches // 5)
    return Run(
        config=CONFIG,
        overrides=base
        | {
            "data.train": ("input.txt",),
            "data.validation_size": 4_000 if quick else VALIDATION,
        },
        labels={"epochs": epochs, "width": width, "rate": rate},
        train=False,
        measure={
            "rate": rate,
            "batches": batches,
            "decays": [STANDARD, 1.0, 10.0] if quick else DECAYS,
            "standard": STANDARD,
            "seeds": 1 if quick else seeds,
            "fresh": fresh,
            "readings": 2 if quick else readings,
        },
    )


def once(quick: bool) -> list[Run]:
    """One epoch, three widths, two seeds."""
    widths = WIDTHS[:2] if quick else WIDTHS
    return [_run(quick, 1, width, RATE, seeds=2, fresh=0, readings=2) for width in widths]


def eight(quick: bool) -> list[Run]:
    """Eight epochs, three widths, one seed, and two fresh ones of two decays."""
    widths = WIDTHS[:2] if quick else WIDTHS
    epochs = 2 if quick else 8
    return [_run(quick, epochs, width, RATE, seeds=1, fresh=2, readings=8) for width in widths]


def many(quick: bool) -> list[Run]:
    """Thirty-two epochs, the middle width, one seed."""
    return [_run(quick, 4 if quick else 32, 64, RATE, seeds=1, fresh=0, readings=16)]


def slower(quick: bool) -> list[Run]:
    """Eight epochs at a quarter of the rate, the middle width, one seed."""
    return [_run(quick, 2 if quick else 8, 64, SLOWER, seeds=1, fresh=0, readings=8)]


SWEEPS = {"once": once, "eight": eight, "many": many, "slower": slower}
