"""Validation losses by learning rate and seed, or the sizes of activations in ten steps."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from configs.default import Config
from experiments.harness.trainings import Trainings
from transformer_jax.inspection import coordinates

_CHECKED_STEPS = 10


def measure(
    config: Config,
    workdir: Path,
    *,
    seeds: int,
    learning_rates: list[float] | None = None,
    checked_rate: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each learning rate and seed, as of `Trainings.row`; or, at the checked rate, for
    each seed, step and activation with its "size", mean |x| on the first batch."""
    trainings = Trainings(config)
    if checked_rate is not None:
        return [row for seed in range(seeds) for row in _sizes(trainings, checked_rate, seed)]
    assert learning_rates is not None
    return [trainings.row(rate, seed) for seed in range(seeds) for rate in learning_rates]


def _sizes(trainings: Trainings, rate: float, seed: int) -> list[dict[str, Any]]:
    sizes = jax.jit(functools.partial(coordinates.sizes, trainings.run.model))
    rows, initial, first = [], None, None
    for made in trainings.steps(rate, seed):
        if made.step > _CHECKED_STEPS:
            break
        if initial is None or first is None:
            initial, first = jax.tree.map(jnp.copy, made.state.params), made.batch
        found = sizes(initial, made.state.params, first)
        rows += [
            {"seed": seed, "step": made.step, "activation": name, "size": float(size)}
            for name, size in found.items()
        ]
    return rows
