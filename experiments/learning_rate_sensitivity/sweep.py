"""Learning rates by size with and without QK-norm; z-loss; attention logits of a given size; one
larger model, at the rates that the report on the smaller ones names."""

from pathlib import Path
from typing import Any

from experiments.harness import results
from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run

# Layers and width; the number of seeds.
MODELS = {(3, 32): 3, (6, 64): 3, (6, 128): 2}
BLIND = (6, 256)
RATES = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]
STEPS = 500
KAPPAS = [1.0, 1e1, 1e2, 1e3, 1e4]
KAPPA_RATE = 1e-2
# The gains of QK-norm stay as they were set.
FROZEN = {"optimizer.groups": (("decoder/self_attention/*_norm/*", 0.0, 0.0),)}
SUMMARY = Path(__file__).parent / "results" / "summary.json"


def _run(
    part: str,
    model: tuple[int, int],
    seed: int,
    learning_rates: list[float],
    *,
    qk_norm: bool = True,
    steps: int,
    changes: dict[str, Any] | None = None,
    labels: dict[str, Any] | None = None,
    gain: float | None = None,
) -> Run:
    """The trainings of one seed. Without biases, as Wortsman et al. have it."""
    layers, width = model
    shape = small(d_model=width, num_layers=layers, steps=steps)
    base = {"model.bias": False, "model.qk_norm": qk_norm}
    return Run(
        config=CONFIG,
        overrides=shape | base | (changes or {}),
        labels={"part": part, "layers": layers, "width": width, "qk_norm": qk_norm, "seed": seed}
        | (labels or {}),
        train=False,
        measure={"learning_rates": learning_rates, "seed": seed, "gain": gain},
    )


def cpu(quick: bool) -> list[Run]:
    """The ladder of sizes, with and without QK-norm."""
    models = {(3, 32): 1, (6, 64): 1} if quick else MODELS
    rates, steps = (RATES[3::2], 40) if quick else (RATES, STEPS)
    return [
        _run("sizes", model, seed, rates, qk_norm=qk_norm, steps=steps)
        for model, seeds in models.items()
        for qk_norm in (False, True)
        for seed in range(seeds)
    ]


def z_loss(quick: bool) -> list[Run]:
    """Without weight decay, with which logits would drift less, and for longer."""
    rates, steps = (RATES[5:6], 40) if quick else (RATES[4:], 3000)
    return [
        _run(
            "z_loss",
            (3, 32),
            seed,
            rates,
            steps=steps,
            changes={"task.z_loss": weight, "optimizer.weight_decay": 0.0},
            labels={"z_loss": weight},
        )
        for weight in (0.0, 1e-4)
        for seed in range(1 if quick else 3)
    ]


def kappa(quick: bool) -> list[Run]:
    """Queries and keys whose entries have a root mean square of sqrt(kappa), for good."""
    return [
        _run(
            "kappa",
            (6, 64),
            seed,
            [KAPPA_RATE],
            steps=40 if quick else STEPS,
            changes=FROZEN,
            labels={"kappa": kappa},
            gain=kappa**0.5,
        )
        for kappa in (KAPPAS[::4] if quick else KAPPAS)
        for seed in range(1 if quick else 3)
    ]


def blind(quick: bool) -> list[Run]:
    """The larger model without QK-norm, at the rates that results/summary.json names.

    None are named before `cpu` has been reported on: `measure` says so then.
    """
    named = results.read_json(SUMMARY).get("prediction/rates", [])
    model, rates, steps = ((6, 128), RATES[3::2], 40) if quick else (BLIND, named, STEPS)
    return [_run("blind", model, 0, rates, qk_norm=False, steps=steps)]


SWEEPS = {"cpu": cpu, "z_loss": z_loss, "kappa": kappa, "blind": blind}
