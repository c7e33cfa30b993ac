"""Warm-up of three lengths, and what would make it superfluous if this or that were its reason."""

from typing import Any

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run
from transformer_jax.configs import default

SCHEMES = ["post_ln", "pre_ln"]
LAYERS = 12
BURN_IN = 100
RATES = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
TESTED = RATES[1:]
# All entries of Lion's steps are as large as Adam's largest; LAMB's rate is |step| / |matrix|.
LION = [3e-4, 1e-3, 3e-3, 1e-2]
LAMB = [3e-3, 1e-2, 3e-2, 1e-1]
# Whose steps are all Adam's, so that the edge of stability is known.
READ = ["none", "5 %", "20 %", "burn-in"]


def _arms(layers: int, steps: int) -> dict[str, tuple[str, list[float], dict[str, Any]]]:
    """arm -> what it is shown among, learning rates, and what it changes."""
    long = {"optimizer.warmup_steps": steps // 5}
    # It has no epsilon, which so has to stay as it is by default.
    epsilon = default.get_config().optimizer.epsilon
    lion = {"optimizer.name": "lion", "optimizer.beta2": 0.99, "optimizer.epsilon": epsilon}
    top = ("decoder/*", layers - layers // 4 + 1, layers, steps // 5)
    warm_up, instead, others = "Adam, by warm-up", "Adam, without warm-up", "other optimizers"
    return {
        "none": (warm_up, RATES, {}),
        "5 %": (warm_up, RATES, {"optimizer.warmup_steps": steps // 20}),
        "20 %": (warm_up, RATES, long),
        "burn-in": (
            instead,
            TESTED,
            {"optimizer.burn_in_steps": BURN_IN, "train.steps": steps + BURN_IN},
        ),
        "gi_adam": (instead, TESTED, {"optimizer.name": "gi_adam"}),
        "top quarter": (instead, TESTED, {"optimizer.layer_warm_ups": (top,)}),
        "lion": (others, LION, lion),
        "lion, 20 %": (others, LION, lion | long),
        "lamb": (others, LAMB, {"optimizer.name": "lamb"}),
    }


def _run(
    scheme: str, layers: int, steps: int, arm: str, seed: int, rates: slice = slice(None)
) -> Run:
    """Without weight decay: that of Lion, LAMB and GI-Adam would follow the learning rate."""
    kind, learning_rates, changes = _arms(layers, steps)[arm]
    plain = {
        "model.residual": scheme,
        "optimizer.name": "adam",
        "optimizer.warmup_steps": 0,
        "optimizer.weight_decay": 0.0,
    }
    return Run(
        config=CONFIG,
        overrides=small(num_layers=layers, steps=steps) | plain | changes,
        labels={"scheme": scheme, "arm": arm, "kind": kind},
        train=False,
        measure={
            "learning_rates": learning_rates[rates],
            "seed": seed,
            "curvature": seed == 0 and arm in READ,
        },
    )


def cpu(quick: bool) -> list[Run]:
    """A process for each scheme, arm and seed."""
    if quick:
        few = slice(-4, None, 2)  # which all of Adam's arms have
        return [_run("post_ln", 4, 12, arm, 0, few) for arm in ("none", "20 %", "top quarter")]
    return [
        _run(scheme, LAYERS, 600, arm, seed)
        for scheme in SCHEMES
        for arm in _arms(LAYERS, 600)
        for seed in range(2)
    ]


SWEEPS = {"cpu": cpu}
