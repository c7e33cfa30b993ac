"""Losses above what the validation pieces cost who knows the language, by tokens seen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from experiments.harness import rates
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.data.corpora import zipf
from transformer_jax.inspection.flops import model_flops

_POINTS = 20  # of a curve


def measure(config: Config, workdir: Path, *, part: str, **arguments: Any) -> list[dict[str, Any]]:
    """Rows of the part, as `_horizons` and `_ladder` say. excess: nats a word above the floor."""
    trainings, floor = Trainings(build(config)), floor_of(config.data.name)
    return {"horizons": _horizons, "ladder": _ladder}[part](trainings, floor, **arguments)


def floor_of(exponent: str) -> float:
    """Nats a word of the validation pieces, all but the last, of who knows the language."""
    numbers = {word: number for number, word in enumerate(zipf.WORDS)}
    words = zipf.text("validation", exponent).split(" ")[: 1 - zipf.LENGTH]
    pieces = np.array([numbers[word] for word in words]).reshape(-1, zipf.LENGTH)
    return float(np.mean(nats(pieces, float(exponent)))) / zipf.LENGTH


def nats(words: Int64[np.ndarray, "B T"], exponent: float) -> Float64[np.ndarray, " B"]:
    """What the pieces cost who knows the language: the floor of these, and not of all, pieces."""
    keys, answers = zipf.language(exponent)
    first, second, answer = np.moveaxis(words.reshape(len(words), -1, 3), 2, 0)
    key = first * len(zipf.WORDS) + second
    return -np.sum(np.log(keys[key]) + np.log(answers[key, answer]), axis=1)


def _horizons(
    trainings: Trainings,
    floor: float,
    *,
    horizons: Sequence[int],
    rate: float,
    warm_up: int | None,
    most: int,
    fresh: int,
) -> list[dict[str, Any]]:
    """{tokens, kind, learning_rate, seed, loss, excess} as of `rates.searched`, for each number of
    steps, and of all {flops, head, layers}: FLOPs a token and those of the head, parameters of the
    layers.

    warm_up: in steps; None: a tenth of them.
    """
    run = trainings.run
    rows = []
    tokens = next(trainings.batches(0))["targets"].size
    width = run.model.config.d_model
    sizes = {
        "flops": model_flops(run) / tokens,
        "head": 6 * width * run.data.vocab_size,
        "layers": 24 * width**2,
        "vocabulary": run.data.vocab_size,
    }
    for steps in horizons:

        def train(peak: float, seed: int, steps: int = steps) -> float:
            at = rates.schedule(peak, steps, warm_up or max(1, steps // 10), "linear")
            for update in trainings.steps(at, seed):
                if update.step == steps:
                    return trainings.validation_loss(update.state.params)
            return float("nan")

        search = rates.searched(train, rate, most, fresh)
        rows += [
            sizes | {"tokens": steps * tokens} | row | {"excess": row["loss"] - floor}
            for row in search
        ]
    return rows


def _ladder(
    trainings: Trainings, floor: float, *, rate: float, shape: str, seeds: int
) -> list[dict[str, Any]]:
    """{seed, share, excess} after each twentieth of the steps."""
    last = trainings.run.train.steps
    at = rates.schedule(rate, last, max(1, last // 10), shape)
    due = {round(last * point / _POINTS): point / _POINTS for point in range(1, _POINTS + 1)}
    rows = []
    for seed in range(seeds):
        for update in trainings.steps(at, seed):
            if update.step in due:
                excess = trainings.validation_loss(update.state.params) - floor
                rows.append({"seed": seed, "share": due[update.step], "excess": excess})
    return rows
