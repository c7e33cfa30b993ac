"""Losses of an arm at the best learning rate of its own, on the way too; noise of gradients."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments.harness import lab, rates
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import losses

_SHARES = (0.1, 0.3, 0.6, 1.0)  # of the steps, after which noise is measured


def measure(config: Config, workdir: Path, *, part: str, **arguments: Any) -> list[dict[str, Any]]:
    """Rows of the part, as `_tuned`, `_critical` and `_noise` say."""
    return _PARTS[part](Trainings(build(config)), **arguments)


def _tuned(trainings: Trainings, *, start: float, most: int, fresh: int) -> list[dict[str, Any]]:
    """{kind, learning_rate, seed, loss}: of the search with seed 0 ("search"), and of others at the
    best rate ("fresh")."""
    return rates.searched(trainings.loss, start, most, fresh)


def _critical(
    trainings: Trainings, *, start: float, most: int, fresh: int, at: Sequence[int]
) -> list[dict[str, Any]]:
    """As `_tuned`, with the loss after so many tokens, loss_TOKENS, of the fresh seeds."""
    size = next(trainings.batches(0))["targets"].size
    due = {max(1, round(tokens / size)): tokens for tokens in at}
    curves: dict[int, dict[str, float]] = {}

    def train(rate: float, seed: int) -> float:
        last = math.nan  # if it diverges, whatever was read before
        for update in trainings.steps(rate, seed):
            if update.step in due and (seed or update.step == max(due)):
                loss = trainings.validation_loss(update.state.evaluated)
                curves.setdefault(seed, {})[f"loss_{due[update.step]}"] = loss
                last = loss if update.step == max(due) else last
        return last

    rows = rates.searched(train, start, most, fresh)
    return [row | curves.get(row["seed"], {}) if row["kind"] == "fresh" else row for row in rows]


def _noise(trainings: Trainings, *, rate: float, batches: int, fresh: int) -> list[dict[str, Any]]:
    """{seed, step, square, trace} of `losses.noise`, on so many batches together, in
    another order of rows than that of training."""
    run = trainings.run
    look = jax.jit(lambda params, batch: losses.noise(run.model, run.loss, params, batch))
    steps = {round(share * run.train.steps) for share in _SHARES}
    rows = []
    for seed in range(fresh):
        parts = list(itertools.islice(trainings.batches(seed + 1_000), batches))
        batch = place(run.mesh, lab.joined(parts))
        for update in trainings.steps(rate, seed):
            if update.step in steps:
                numbers = jax.device_get(look(update.state.params, batch))
                rows.append({"seed": seed, "step": update.step, **numbers})
    return rows


_PARTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "tuned": _tuned,
    "critical": _critical,
    "noise": _noise,
}
