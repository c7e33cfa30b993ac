"""Short trainings in this process: one compiled step for all learning rates and seeds.

A run of the command line takes seconds to start and to compile, which is as long as these train.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.data.prepare import recipe
from transformer_jax.devices.mesh import place
from transformer_jax.models.family import Batch, Params
from transformer_jax.run import Run
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.schedule import make_schedule
from transformer_jax.training.state import State
from transformer_jax.training.step import Metrics, TrainStep, is_finite


class Update(NamedTuple):
    """What a step has made.

    Attributes:
      step: its number from 1; 0 before the first, which has no metrics.
      state: after it; gone once the next step is asked for.
      batch: that the step was made on; of 0, that of the first.
    """

    step: int
    state: State
    batch: Batch
    metrics: Metrics


class Trainings:
    """The trainings of a run, with any learning rate and seed in the place of its own."""

    def __init__(self, run: Run):
        self.run = run

        @functools.partial(jax.jit, donate_argnums=0)
        def step(state: State, batch: Batch, learning_rate: Any) -> tuple[State, Metrics]:
            optimizer_settings = dataclasses.replace(run.optimizer, learning_rate=learning_rate)
            schedule = make_schedule(optimizer_settings)
            train_step = TrainStep(
                settings=dataclasses.replace(run.train, log_every=1),
                loss=run.loss,
                apply=run.outputs,
                optimizer=make_optimizer(optimizer_settings, schedule, lambda: run.roles),
                schedule=schedule,
                average=run.average,
                frozen=run.optimizer.is_frozen,
            )
            return train_step.step(state, batch)

        self._step = step
        # Made once for all learning rates of a seed, which follow each other.
        self._in_order = functools.lru_cache(maxsize=1)(
            lambda seed: list(itertools.islice(self.batches(seed), self.run.train.steps))
        )
        self._first = jax.jit(lambda seed, batch: self.run.with_seed(seed).new_state(batch))

    def steps(
        self,
        learning_rate: float | Callable[[int], float],
        seed: int,
        batches: Iterable[recipe.Batch] | None = None,
        *,
        after: Update | None = None,
    ) -> Iterator[Update]:
        """Trains: the state before the first step, and then what each step made, to the last one.

        Ends before a step whose loss, gradient or parameters are not finite: it has diverged.

        Args:
          learning_rate: the peak of the run's schedule; or of each step by its number, from 1. Then
            the decay of "adamw_independent" is the same in every step.
          batches: in place of the training data in the order of this seed.
          after: what another training has made, from which this one branches off; its state stays.

        Raises ValueError for rates by step with a weight decay that follows the schedule.
        """
        run, begun = self.run, 0 if after is None else after.step
        if callable(learning_rate) and run.optimizer.weight_decay_power != 1:
            raise ValueError(
                f"optimizer.weight_decay_power={run.optimizer.weight_decay_power} follows the "
                "schedule of the config, and the rate of each step is given: give the peak alone"
            )
        ordered = itertools.islice(batches or self._in_order(seed), begun, None)
        placed = (place(run.mesh, batch) for batch in ordered)
        first = next(placed)
        state = self._first(seed, first) if after is None else jax.tree.map(jnp.copy, after.state)
        yield Update(begun, state, first, {})
        every = itertools.chain([first], placed)
        numbered = zip(range(begun + 1, run.train.steps + 1), every, strict=False)
        for number, batch in numbered:
            rate = learning_rate(number) if callable(learning_rate) else learning_rate
            state, metrics = self._step(state, batch, rate)
            if not is_finite(metrics):
                return
            yield Update(number, state, batch, metrics)

    def batches(self, seed: int) -> Iterator[recipe.Batch]:
        """The training data in the order of this seed, without end."""
        return iter(self.run.with_seed(seed).data.train_streams())

    def validation_loss(self, params: Params) -> float:
        """Nats a token, without label smoothing and z-loss."""
        return self.run.trained(params).losses(self._validation)["token_loss"]

    def loss(self, learning_rate: float | Callable[[int], float], seed: int) -> float:
        """The validation loss after the last step; NaN where training diverged."""
        for update in self.steps(learning_rate, seed):
            if update.step == self.run.train.steps:
                return self.validation_loss(update.state.evaluated)
        return math.nan

    @functools.cached_property
    def _validation(self) -> Any:
        return self.run.data.split("validation")

    def row(
        self,
        learning_rate: float,
        seed: int,
        watch: Callable[[Update], None] = lambda update: None,
    ) -> dict[str, Any]:
        """One training: its learning_rate and seed, and the validation loss before and after it.

        initial, loss: before and after; the latter is NaN where training diverged.
        unigram_entropy: of the data, in nats a token. watch: shown every step.
        """
        row: dict[str, Any] = {"learning_rate": learning_rate, "seed": seed, "loss": math.nan}
        row["unigram_entropy"] = self.run.data.unigram_entropy
        for update in self.steps(learning_rate, seed):
            watch(update)
            if update.step == 0:
                row["initial"] = self.validation_loss(update.state.evaluated)
            if update.step == self.run.train.steps:
                row["loss"] = self.validation_loss(update.state.evaluated)
        return row
