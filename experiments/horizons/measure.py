"""Losses at each horizon: of trunks, their averages and branches, and of schedules made for it."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.harness.trainings import Trainings, Update
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.models.family import Params

# What is left of the peak at a share x of the decay (Haegele et al. 2024, 2405.18392, and code).
SHAPES: dict[str, Callable[[float], float]] = {
    "line": lambda x: 1 - x,
    "1-sqrt": lambda x: 1 - math.sqrt(x),
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "exponential": lambda x: 0.01**x,
}
# Of a horizon, in which a branch decays; a line also in the shorter time.
_DECAY, _SHORT = 0.2, 0.1
_WINDOWS = (1, 2, 5, 10, 20)  # percent of a horizon
_EVERY = 1  # percent between weights that are kept
_FLOOR = 0.1


def measure(
    config: Config,
    workdir: Path,
    *,
    part: str,
    rate: float,
    seed: int,
    horizons: Sequence[int],
    warm_up: int,
) -> list[dict[str, Any]]:
    """A row {horizon, arm, loss} for all that ends at a horizon, of one peak rate and seed."""
    trainings = Trainings(build(config))

    def peak(step: int) -> float:
        return rate * min(1.0, step / warm_up)

    if part == "trunk":
        return _trunk(trainings, peak, seed, horizons)
    rows = []
    floors = {"0": 0.0, "10 %": _FLOOR}
    shapes = ("cosine", "line") if part == "schedule" else ("line",)
    for horizon in horizons if part == "schedule" else horizons[-1:]:
        for shape in shapes:
            for name, floor in floors.items():

                def scheduled(step: int, shape=shape, floor=floor, horizon=horizon) -> float:
                    if step < warm_up:
                        return peak(step)
                    share = SHAPES[shape]((step - warm_up) / (horizon - warm_up))
                    # Not 0, of which an independent weight decay would be no share.
                    return rate * max(floor + (1 - floor) * share, 1e-9)

                loss = _last_loss(trainings, trainings.steps(scheduled, seed), horizon)
                rows.append({"horizon": horizon, "arm": f"{shape} to {name}", "loss": loss})
    return rows


def _trunk(
    trainings: Trainings, peak: Callable[[int], float], seed: int, horizons: Sequence[int]
) -> list[dict[str, Any]]:
    """A constant rate to the longest horizon; what branches off it and is averaged on the way."""
    starts = {
        round((1 - share) * horizon): (horizon, share)
        for horizon in horizons
        for share in (_DECAY, _SHORT)
    }
    snapshots: dict[int, list[Params]] = {horizon: [] for horizon in horizons}
    begun: list[tuple[Update, int, float]] = []
    rows = []
    for update in trainings.steps(peak, seed):
        for horizon, weights in snapshots.items():
            every = horizon * _EVERY // 100
            if (1 - _DECAY) * horizon < update.step <= horizon and update.step % every == 0:
                weights.append(jax.tree.map(jnp.copy, update.state.params))
        if update.step in starts:
            copy = update._replace(state=jax.tree.map(jnp.copy, update.state))
            begun.append((copy, *starts[update.step]))
        if update.step in snapshots:
            models = snapshots[update.step]
            rows.append(_row(update.step, "trunk", trainings.validation_loss(update.state.params)))
            rows += _averages(trainings, models, update.step, "trunk")
            models.clear()
    for start, horizon, share in begun:
        for shape in SHAPES if share == _DECAY else ("line",):
            rows += _branch(trainings, peak, seed, start, horizon, shape)
    return rows


def _branch(
    trainings: Trainings,
    peak: Callable[[int], float],
    seed: int,
    start: Update,
    horizon: int,
    shape: str,
) -> list[dict[str, Any]]:
    """A branch that decays from where it starts to a horizon, and averages on it."""
    length = horizon - start.step

    def decayed(step: int) -> float:
        return peak(step) * SHAPES[shape]((step - start.step) / length)

    name = f"{shape}, {round(100 * length / horizon)} %"
    weights, loss = [], math.nan
    for update in trainings.steps(decayed, seed, after=start):
        if update.step > start.step and update.step % (horizon * _EVERY // 100) == 0:
            weights.append(jax.tree.map(jnp.copy, update.state.params))
        if update.step == horizon:
            loss = trainings.validation_loss(update.state.params)
            break
    rows = [_row(horizon, name, loss)]
    if shape == "line" and math.isfinite(loss):
        rows += _averages(trainings, weights, horizon, name)
    return rows


def _averages(
    trainings: Trainings, weights: Sequence[Params], horizon: int, name: str
) -> list[dict[str, Any]]:
    """Losses of means over windows of weights kept every percent, and of moving averages whose
    weights have the same centre of mass."""
    rows = []
    for window in (size for size in _WINDOWS if size <= len(weights)):
        share = 2 / (window + 1)
        moving = [(1 - share) ** age for age in range(len(weights))]
        for kind, factors in (("mean", [1.0] * window), ("moving", moving)):
            mean = _weighted(weights[::-1], factors)
            loss = trainings.validation_loss(mean)
            rows.append(_row(horizon, f"{name}, {kind} of {window} %", loss))
    return rows


def _weighted(newest_first: Iterable[Params], factors: Sequence[float]) -> Params:
    pairs = list(zip(newest_first, factors, strict=False))
    total = sum(factor for _, factor in pairs)
    scaled = [jax.tree.map(lambda x, f=f: x * (f / total), tree) for tree, f in pairs]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *scaled)


def _last_loss(trainings: Trainings, steps: Iterable[Update], horizon: int) -> float:
    for update in steps:
        if update.step == horizon:
            return trainings.validation_loss(update.state.params)
    return math.nan


def _row(horizon: int, arm: str, loss: float) -> dict[str, Any]:
    return {"horizon": horizon, "arm": arm, "loss": loss}
