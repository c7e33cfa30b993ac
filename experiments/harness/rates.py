"""Losses by learning rate: the best one, what it costs to take another, and how much it matters.

Of rows {learning_rate, seed, loss, initial, unigram_entropy, ...}, as `Trainings.row` gives them; a
loss that is missing (None or NaN) is that of a training that diverged.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.harness.results import Row, group
from transformer_jax.tasks.tokens import PLATEAU_MARGIN

# The largest loss, of the best one's multiples, that still lies near the optimum.
_NEAR = 1.2


class Optimum(NamedTuple):
    """The best learning rate of one seed.

    Attributes:
      log2_rate: where the parabola through the losses around the least one is least.
      loss: the least one, as measured.
      inside: whether the grid goes on to both sides of it; where it does not, the optimum may lie
        beyond.
    """

    log2_rate: float
    loss: float
    inside: bool


def optimum(losses: Mapping[float, float | None]) -> Optimum:
    """The best of a grid of learning rates -> losses.

    The parabola, of log2 of the rate, goes through the least loss and up to two on each side, as
    far as they are without a gap below 1.2 times the least one; where one side has none, the rate
    is that of the least loss.

    Raises:
      ValueError: no training has a loss.
    """
    rates = sorted(losses)
    values = np.array([_number(losses[rate]) for rate in rates])
    if not np.isfinite(values).any():
        raise ValueError(f"no training has a loss, at none of the learning rates {rates}")
    least = int(np.nanargmin(values))
    inside = 0 < least < len(rates) - 1
    near = values <= _NEAR * values[least]
    first = last = least
    while first > max(0, least - 2) and near[first - 1]:
        first -= 1
    while last < min(len(rates) - 1, least + 2) and near[last + 1]:
        last += 1
    x, loss = np.log2(rates), float(values[least])
    if not first < least < last:
        return Optimum(float(x[least]), loss, inside)
    a, b, _ = np.polyfit(x[first : last + 1], values[first : last + 1], 2)
    if a <= 0:  # flat, or not like a parabola: the nearest three are, since the middle is least
        first, last = least - 1, least + 1
        a, b, _ = np.polyfit(x[first : last + 1], values[first : last + 1], 2)
    at = -b / (2 * a) if a > 0 else x[least]
    return Optimum(float(np.clip(at, x[first], x[last])), loss, inside)


def searched(
    train: Callable[[float, int], float], start: float, most: int, fresh: int
) -> list[Row]:
    """Rows {kind, learning_rate, seed, loss}: a search with seed 0, and fresh seeds at its best.

    The search takes octaves: the start, one on each side, and on beyond the edge where the least
    loss is, until that lies inside or `most` rates are trained (1: the start alone).

    Args:
      train: (learning rate, seed) -> the last loss, NaN where training diverged.
      fresh: how many seeds, from 1 on, are trained at the rate of the least loss, of kind "fresh".
    """

    def least(losses: Mapping[float, float]) -> float:
        return min(
            sorted(losses), key=lambda rate: losses[rate] if _is_loss(losses[rate]) else math.inf
        )

    losses = {rate: train(rate, 0) for rate in (start, start / 2, start * 2)[:most]}
    while len(losses) < most and (best := least(losses)) in (min(losses), max(losses)):
        beyond = best / 2 if best == min(losses) else best * 2
        losses[beyond] = train(beyond, 0)
    best = least(losses)
    rows = [("search", rate, 0, loss) for rate, loss in losses.items()]
    rows += [("fresh", best, seed, train(best, seed)) for seed in range(1, fresh + 1)]
    return [dict(zip(("kind", "learning_rate", "seed", "loss"), row, strict=True)) for row in rows]


def schedule(peak: float, steps: int, warm_up: int, shape: str) -> Callable[[int], float]:
    """The rate of each step from 1, as `optimizer.schedule` has "linear", to 0, and "constant".

    warm_up: in steps; a longer one than the training goes as far as it comes.
    """

    def at(step: int) -> float:
        ends = shape == "linear" and steps > warm_up
        decay = (steps - step) / (steps - warm_up) if ends else 1.0
        return peak * min(1.0, step / warm_up, decay)

    return at


def chosen_rate(rows: Iterable[Row]) -> str:
    """The rate of the fresh seeds of a search, and whether it is at the edge of it."""
    rows = list(rows)
    rate = next(row["learning_rate"] for row in rows if row["kind"] == "fresh")
    return f"{rate:.3g}" + ", at the edge" * at_edge(rows)


def at_edge(rows: Iterable[Row]) -> bool:
    """Whether the best rate of a search, as of `searched`, is its least or its largest one."""
    searched, fresh = (
        {row["learning_rate"] for row in cell}
        for cell in ([row for row in rows if row["kind"] == kind] for kind in ("search", "fresh"))
    )
    return bool(fresh & {min(searched), max(searched)})


def optima(rows: Iterable[Row]) -> dict[int, Optimum]:
    """The optimum of each seed, but those of which nothing `trains`."""
    seeds = {seed: cell for (seed,), cell in group(rows, "seed").items()}
    return {seed: optimum(grid(cell)) for seed, cell in seeds.items() if any(map(trains, cell))}


def best_rate(rows: Sequence[Row]) -> float | None:
    """The learning rate of the grid with the least mean loss over seeds; None where there is none
    at which all seeds have a loss."""
    means = {
        rate: float(np.mean([_number(row["loss"]) for row in cell]))
        for (rate,), cell in group(rows, "learning_rate").items()
    }
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    return min(finite, key=finite.__getitem__, default=None)


def penalty(rows: Sequence[Row], rate: float) -> float | None:
    """What is lost by a learning rate of the grid against the best one, mean over seeds.

    Infinite where a seed diverges at it; None where at no rate all seeds have a loss.

    Raises:
      ValueError: the grid has no such rate.
    """
    if rate not in (rates := {row["learning_rate"] for row in rows}):
        raise ValueError(f"the learning rate {rate:g} was not run, but {sorted(rates)}")
    best = best_rate(rows)
    if best is None:
        return None
    at, at_best = (
        [_number(row["loss"]) for row in rows if row["learning_rate"] == each]
        for each in (rate, best)
    )
    lost = float(np.mean(at) - np.mean(at_best))
    return lost if math.isfinite(lost) else math.inf


def drawn_loss(row: Row) -> float:
    """The loss; that before training where it is larger, or where training diverged."""
    return min(_number(row["loss"]), row["initial"]) if _is_loss(row["loss"]) else row["initial"]


def limit(row: Row) -> float:
    """The largest loss with which a training has learnt more than how often each token occurs."""
    return row["unigram_entropy"] - PLATEAU_MARGIN


def trains(row: Row) -> bool:
    """Whether a training ends within the `limit`."""
    return _is_loss(row["loss"]) and row["loss"] <= limit(row)


def boundary(rows: Sequence[Row]) -> float:
    """`first_failing` of one seed, by the `limit`."""
    return first_failing(grid(rows), limit(rows[0]))


def sensitivity(losses: Mapping[float, float | None], initial: float) -> float:
    """The mean over learning rates of min(loss, initial) - least loss (Wortsman et al. 2023, 2.2).

    One that diverged counts as the initial loss.
    """
    values = [drawn_loss({"loss": loss, "initial": initial}) for loss in losses.values()]
    return float(np.mean(values) - min(values))


def first_failing(losses: Mapping[float, float | None], most: float) -> float:
    """The smallest learning rate above the best one from which on all of the grid fail.

    To fail is to diverge, or to end above `most`: what is only slow, at small rates, does not
    count. Infinite where the largest one of the grid trains.
    """
    failing = math.inf
    for rate in sorted(losses, reverse=True):
        loss = losses[rate]
        if _is_loss(loss) and _number(loss) <= most:
            break
        failing = rate
    return failing


def grid(rows: Iterable[Row]) -> dict[float, float | None]:
    """learning rate -> loss, of the rows of one seed."""
    return {row["learning_rate"]: row["loss"] for row in rows}


def _number(loss: float | None) -> float:
    return math.nan if loss is None else loss


def _is_loss(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)
