"""What every step shows: its loss, how far Adam's second moments lag behind, the curvature."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.harness.trainings import Trainings, Update
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.data.prepare.recipe import Batch
from transformer_jax.devices.mesh import place
from transformer_jax.inspection.sharpness import make_sharpness
from transformer_jax.models.family import Role, parameter_name
from transformer_jax.training.optimizer import adam_state
from transformer_jax.training.update_rules import rms_ratio

# Of the characters seen so far, those are rare that are less than this share of them.
RARE = 1e-3


def measure(
    config: Config,
    workdir: Path,
    *,
    seeds: int,
    learning_rates: list[float] | None = None,
    learning_rate: float | None = None,
    injected: int = 0,
    curvature: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """A row for each learning rate and seed, as of `Trainings.row`; or, at one learning rate and
    with a batch of rare tokens in step `injected`, a row for each seed and step:

    loss: before the update, on the step's batch.
    ratio, tensor: the largest of `ratios`, and where it is; layers count from 1.
    curvature: in the steps `curvature` of the first seed, the largest of the state that the step
      begins with, as Adam's steps meet it, on one ordinary batch; times the learning rate.

    The row of the step at which a training diverged lacks all but its seed and step.
    """
    trainings = Trainings(build(config))
    if learning_rates is not None:
        return [trainings.row(rate, seed) for seed in range(seeds) for rate in learning_rates]
    assert learning_rate is not None
    look = _ratios_by_step(trainings)
    rows = []
    for seed in range(seeds):
        read = _curvature(trainings, learning_rate, seed, () if seed else curvature)
        rows += _rows(trainings, learning_rate, seed, injected, look, read)
    return rows


def _rows(
    trainings: Trainings,
    rate: float,
    seed: int,
    injected: int,
    look: Callable[[Any, Update], Mapping[str, Any]],
    read: Callable[[Update], dict[str, float]],
) -> Iterator[dict[str, Any]]:
    """The rows of one training."""
    batches = with_rare_batch(trainings.batches(seed), injected, seed)
    momentum, curved, last = None, {}, 0
    for update in trainings.steps(rate, seed, batches):
        last = update.step
        if update.step > 0:
            row = {"seed": seed, "step": update.step, "loss": float(update.metrics["loss"])}
            yield row | _largest(jax.device_get(look(momentum, update))) | curved
        momentum = jax.tree.map(jnp.copy, adam_state(update.state.opt_state).mu)
        # The next step's: it begins with the state that this one leaves.
        curved = read(update)
    if last < trainings.run.train.steps:
        yield {"seed": seed, "step": last + 1, "loss": math.nan}


def _largest(ratios: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tensor = max(ratios, key=lambda name: ratios[name].max())
    by_layer = ratios[tensor]
    layer = f" {by_layer.argmax() + 1}" * (by_layer.size > 1)
    return {"ratio": by_layer.max(), "tensor": tensor + layer}


def with_rare_batch(batches: Iterable[Batch], at: int, seed: int) -> Iterator[Batch]:
    """The batches, but in place of number `at`, from 1, one of rare tokens alone, which are drawn
    evenly from those that are less than `RARE` of all tokens so far."""
    totals: Any = np.zeros(1, np.int64)
    for number, batch in enumerate(batches, start=1):
        tokens = batch["targets"]
        if number == at:
            rare = np.flatnonzero((totals > 0) & (totals < RARE * totals.sum()))
            if not rare.size:
                raise ValueError(
                    f"before step injected={at} every token makes up at least RARE={RARE} of all: "
                    "inject later, or train on more kinds of tokens"
                )
            targets = np.random.default_rng(seed).choice(rare, tokens.shape).astype(tokens.dtype)
            yield {**batch, "targets": targets}
            continue
        counts = np.bincount(tokens.ravel(), minlength=totals.size)
        totals = np.pad(totals, (0, counts.size - totals.size)) + counts
        yield batch


def ratios(
    momentum: Any,
    new_momentum: Any,
    second: Any,
    step: Int[Array, ""] | int,
    roles: Mapping[str, Role],
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> dict[str, Float[Array, "layers"]]:
    """The root mean square of gradient / sqrt(second moment) in a step, by tensor and layer.

    As `rms_ratio` has it, and `stable_adamw`.

    Args:
      momentum, new_momentum: before and after the step; they differ by the gradient as Adam got it,
        which is after clipping.
      second: after it, with its bias.
    """

    def one(path, old, new, second):
        gradient = (new - beta1 * old) / (1 - beta1)
        ratio = rms_ratio(
            roles[parameter_name(path)], gradient, second / (1 - beta2**step), epsilon
        )
        return ratio.reshape(-1)

    tree = jax.tree_util.tree_map_with_path(one, momentum, new_momentum, second)
    return named(tree)


def named(tree: Any) -> dict[str, Array]:
    """The leaves of a tree by their paths, as "embedding/table"."""
    return {parameter_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _ratios_by_step(trainings: Trainings) -> Callable[[Any, Update], dict[str, Array]]:
    """Compiles (momentum before a step, what it made) -> `ratios`."""
    run = trainings.run
    settings = run.optimizer
    moments = {name: getattr(settings, name) for name in ("beta1", "beta2", "epsilon")}
    compiled = jax.jit(functools.partial(ratios, roles=run.roles, **moments))

    def look(momentum: Any, update: Update) -> dict[str, Array]:
        adam = adam_state(update.state.opt_state)
        return compiled(momentum, adam.mu, adam.nu, update.step)

    return look


def _curvature(
    trainings: Trainings, rate: float, seed: int, steps: Sequence[int]
) -> Callable[[Update], dict[str, float]]:
    """What a step made -> the curvature that the next one begins with, where that is one of these
    steps; always on the first batch of the training data, so that it moves with the weights alone.
    """
    sharpness = make_sharpness(trainings.run)
    batch = place(trainings.run.mesh, next(trainings.batches(seed)))

    def read(update: Update) -> dict[str, float]:
        if update.step + 1 not in steps:
            return {}
        return {
            "curvature": rate * float(sharpness(update.state, batch)["preconditioned_sharpness"])
        }

    return read
