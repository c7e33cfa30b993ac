"""Adam at constant learning rates on one batch, by momentum and scheme; and on parts of it."""

from typing import Any

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run, grid

SCHEMES = ["pre_ln", "post_ln"]
BETA1S = [0.0, 0.5, 0.9]
RATES = [3e-4, 1e-3, 3e-3]
EVERY = 25  # steps between readings
ROWS = 128
# Of the controls: rows of a step, and at which learning rate and which momenta.
MINIBATCH, CONTROL_RATE, CONTROL_BETA1S = 32, 1e-3, [0.0, 0.9]


def _run(
    scheme: str, beta1: float, learning_rate: float, rows: int, shape: dict[str, Any], every: int
) -> Run:
    """Plain Adam: the threshold is derived without warm-up, clipping or weight decay."""
    plain = {
        "optimizer.name": "adam",
        "optimizer.schedule": "constant",
        "optimizer.warmup_steps": 0,
        "optimizer.clip_norm": 0.0,
        "optimizer.weight_decay": 0.0,
    }
    changes = {"model.residual": scheme, "optimizer.beta1": beta1}
    return Run(
        config=CONFIG,
        overrides=shape | plain | changes,
        labels={
            "scheme": scheme,
            "learning_rate": learning_rate,
            "beta1": beta1,
            "rows": rows,
            "whole": rows == shape["data.batch_size"],
        },
        train=False,
        measure={"learning_rate": learning_rate, "rows": rows, "every": every},
    )


def cpu(quick: bool) -> list[Run]:
    """A process for each training, of one seed; one after the other, in any number of sittings."""
    steps, rows, part, every = (24, 16, 8, 6) if quick else (1000, ROWS, MINIBATCH, EVERY)
    shape = small(steps=steps) | {"data.batch_size": rows}
    cells = grid(
        scheme=SCHEMES[:1] if quick else SCHEMES,
        beta1=CONTROL_BETA1S if quick else BETA1S,
        learning_rate=RATES[1:] if quick else RATES,
    )
    controls = grid(
        scheme=SCHEMES[:1] if quick else SCHEMES,
        beta1=CONTROL_BETA1S[:1] if quick else CONTROL_BETA1S,
        learning_rate=[CONTROL_RATE],
    )
    return [
        *(_run(**cell, rows=rows, shape=shape, every=every) for cell in cells),
        *(_run(**cell, rows=part, shape=shape, every=every) for cell in controls),
    ]


SWEEPS = {"cpu": cpu}
