"""Weight decays by the power of the schedule that they follow, with norms and without."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

DECAYS = [0.0, 0.1, 0.5, 1.0, 2.0]
SCHEMES = ["pre_ln", "post_ln", "t_fixup"]
RATE = 4e-3
STEPS = 2_000
BETA1S = [0.5, 0.9]
EQUILIBRIUM_DECAY = 1.0
PROBE_EVERY = 50


def _run(quick: bool, seed: int, labels: dict[str, Any], changes: dict[str, Any]) -> Run:
    steps = 100 if quick else STEPS
    base = text(num_layers=3, d_model=64, steps=steps, warmup_steps=steps // 20)
    base |= {
        "optimizer.learning_rate": RATE,
        "train.probes": tuple(
            (name, PROBE_EVERY // (10 if quick else 1))
            for name in ("weight_norm", "gradient_norm", "update_norm")
        ),
        "seed": seed,
    }
    return Run(config=CONFIG, overrides=base | changes, labels=labels | {"seed": seed})


def line(quick: bool) -> list[Run]:
    """A line to 0: decays by power by scheme, and a constant rate; two seeds."""
    arms = [
        (scheme, "linear", decay, power)
        for scheme in SCHEMES
        for decay in DECAYS
        for power in ((1, 2) if decay else (1,))
    ]
    arms += [("pre_ln", "constant", decay, 1) for decay in (0.1, 1.0, 2.0)]
    if quick:
        arms = [arm for arm in arms if arm[0] == "pre_ln" and arm[2] in (0.0, 1.0)]
    return [
        _run(
            quick,
            seed,
            {"scheme": scheme, "schedule": schedule, "decay": decay, "power": power},
            {
                "model.residual": scheme,
                "optimizer.schedule": schedule,
                "optimizer.weight_decay": decay,
                "optimizer.weight_decay_power": power,
            },
        )
        for scheme, schedule, decay, power in arms
        for seed in range(1 if quick else 2)
    ]


def equilibrium(quick: bool) -> list[Run]:
    """A constant rate, by beta1: the angle of a step, when the norms have come to rest."""
    return [
        _run(
            quick,
            seed,
            {"beta1": beta1},
            {
                "optimizer.schedule": "constant",
                "optimizer.weight_decay": EQUILIBRIUM_DECAY,
                "optimizer.beta1": beta1,
            },
        )
        for beta1 in BETA1S
        for seed in range(1 if quick else 2)
    ]


SWEEPS = {"line": line, "equilibrium": equilibrium}
