"""Validation losses by learning rate and seed, and what depth does before training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.harness import coordinate_check
from experiments.harness.trainings import Trainings, Update
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection import observed


def measure(
    config: Config,
    workdir: Path,
    *,
    seeds: int,
    learning_rates: Sequence[float] = (),
    checked_rate: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each learning rate and seed, as of `Trainings.row`, with what the model of that
    seed shows before training on the first batch, after its last sublayer:

    stream, branch: variances of the residual stream and of what is added to it.
    token_cosine: between different tokens of a text.

    Or, at the checked rate, for each seed, step and activation, as of `coordinate_check.sizes`.
    """
    trainings = Trainings(build(config))
    if checked_rate is not None:
        return coordinate_check.sizes(trainings, checked_rate, seeds)
    look = jax.jit(lambda params, batch: _look(trainings, params, batch))
    rows = []
    for seed in range(seeds):
        metrics: dict[str, Any] = {}

        def watch(update: Update, metrics: dict[str, Any] = metrics) -> None:
            if update.step == 0 and not metrics:
                metrics.update(jax.device_get(look(update.state.params, update.batch)))

        rows += [trainings.row(rate, seed, watch) | metrics for rate in learning_rates]
    return rows


def _look(trainings: Trainings, params: Any, batch: Any) -> dict[str, Any]:
    activations = observed.observe(trainings.run.model, params, batch)[1]["decoder"]
    return {
        "stream": observed.variances(activations.outputs, activations.real)[-1],
        "branch": observed.branch_variance(activations)[-1],
        "token_cosine": observed.token_similarity(activations)[-1],
    }
