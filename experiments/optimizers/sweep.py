"""Ten optimizers by width, each with a search of its own; AdamW also by the number of steps."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

STEPS = 500
HORIZONS = [250, 1_000, 2_000]  # of tuned AdamW besides; of untuned 1,000
UNTUNED = 3e-4  # a learning rate that is often taken, with a weight decay of 0.1
_OF_ADAM = {"optimizer.beta2": 0.95}
_NO_BETA2 = {"optimizer.beta2": 0.98}  # the default's, where it has no effect
# Where the search of the learning rate starts, and what else is an optimizer's own.
OPTIMIZERS: dict[str, tuple[float, dict[str, Any]]] = {
    "adamw": (4e-3, _OF_ADAM),
    "muon": (8e-3, _OF_ADAM),
    "soap": (4e-3, _OF_ADAM),
    "lion": (5e-4, {"optimizer.beta2": 0.99}),
    "signum": (5e-4, _NO_BETA2),
    "adafactor": (3e-2, _NO_BETA2),
    "lamb": (2e-2, _OF_ADAM),
    "ademamix": (2e-3, _OF_ADAM),
    # Made for a constant rate, whose averages take the place of a decay.
    "schedule_free": (8e-3, _OF_ADAM | {"optimizer.schedule": "constant"}),
    "sgd": (0.5, _NO_BETA2),
}
# Weight decays, as shares of the weights that a step at the start's rate takes off.
SHARES = [4e-4, 0.0, 4e-3]


def _run(
    quick: bool, width: int, name: str, steps: int, labels: dict[str, Any], measure: dict[str, Any]
) -> Run:
    steps = steps // 25 if quick else steps
    base = text(num_layers=3, d_model=width, steps=steps, warmup_steps=steps // 10)
    _, settings = OPTIMIZERS[name]
    return Run(
        config=CONFIG,
        overrides=base | {"optimizer.name": name} | settings,
        labels={"width": width, "optimizer": name, "steps": steps} | labels,
        train=False,
        measure={"fresh": _FRESH[width] if not quick else 2} | measure,
    )


_FRESH = {32: 3, 64: 3, 128: 2}  # seeds that have chosen nothing


def _width(width: int, horizons: list[int], tried: int, quick: bool) -> list[Run]:
    """tried: how many weight decays each optimizer has."""
    names = ["adamw", "muon", "sgd"] if quick else list(OPTIMIZERS)
    horizons = [STEPS, *(horizons[:1] if quick else horizons)]
    arms = [(name, STEPS) for name in names] + [("adamw", steps) for steps in horizons[1:]]
    tuned = []
    for name, steps in arms:
        rate, _ = OPTIMIZERS[name]
        decays = [share / rate for share in SHARES[: 2 if quick else tried]]
        search = {"start": rate, "most": 3 if quick else 6, "decays": decays}
        tuned.append(_run(quick, width, name, steps, {"tuned": "yes"}, search))
    untuned = [
        _run(
            quick, width, "adamw", steps, {"tuned": "no"},
            {"start": UNTUNED, "most": 1, "decays": [0.1]},
        )
        for steps in horizons
        if STEPS <= steps <= 2 * STEPS
    ]  # fmt: skip
    return tuned + untuned


def d32(quick: bool) -> list[Run]:
    """d_model 32."""
    return _width(32, HORIZONS, len(SHARES), quick)


def d64(quick: bool) -> list[Run]:
    """d_model 64."""
    return _width(64, HORIZONS, len(SHARES), quick)


def d128(quick: bool) -> list[Run]:
    """d_model 128: one weight decay, two fresh seeds, and AdamW to 1,000 steps."""
    return _width(128, HORIZONS[:2], 1, quick)


SWEEPS = {"d32": d32, "d64": d64, "d128": d128}
