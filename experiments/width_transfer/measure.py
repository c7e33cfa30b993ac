"""Validation losses by learning rate and seed, or the sizes of activations in ten steps."""

from pathlib import Path
from typing import Any

from experiments.harness import coordinate_check
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config


def measure(
    config: Config,
    workdir: Path,
    *,
    seeds: int,
    learning_rates: list[float] | None = None,
    checked_rate: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each learning rate and seed, as of `Trainings.row`; or, at the checked rate, for
    each seed, step and activation, as of `coordinate_check.sizes`."""
    trainings = Trainings(build(config))
    if checked_rate is not None:
        return coordinate_check.sizes(trainings, checked_rate, seeds)
    assert learning_rates is not None
    return [trainings.row(rate, seed) for seed in range(seeds) for rate in learning_rates]
