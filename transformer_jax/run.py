"""What a run is made of, as plain values and functions."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PyTree

from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.serve.continuous_rows import Endless
from transformer_jax.devices.mesh import batch_sharding, local_rows
from transformer_jax.evaluation.search import IMPOSSIBLE, DecodeSettings
from transformer_jax.evaluation.trained import EvalStep, Trained
from transformer_jax.models.family import Model, Role, roles
from transformer_jax.process import hosts
from transformer_jax.runs.workdir import CHECKPOINTS
from transformer_jax.tasks.task import Task
from transformer_jax.training import state, step
from transformer_jax.training.losses import Batch, Loss
from transformer_jax.training.state import State
from transformer_jax.training.step import ApplyFn, StepFn, TrainSettings

Params = PyTree[Float[Array, "..."]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """`config.checkpoint`, but for `every`, which is one of training's intervals."""

    keep_last: int
    best_metric: str
    average_last: int
    init_from: str

    def __post_init__(self):
        for name in ("keep_last", "average_last"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"checkpoint.{name}={value} is less than 1")
        if self.average_last > self.keep_last:
            raise ValueError(
                f"checkpoint.average_last={self.average_last} needs as many checkpoints, but "
                f"checkpoint.keep_last={self.keep_last}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """`config.evaluate`."""

    checkpoint: str
    batch_size: int
    bleu_tokenizer: str
    memory_length: int | None
    samples: tuple[str, ...]

    def __post_init__(self):
        if self.memory_length is not None and self.memory_length < 0:
            raise ValueError(f"evaluate.memory_length={self.memory_length} is negative")
        if self.batch_size < 1:
            raise ValueError(f"evaluate.batch_size={self.batch_size} is less than 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run consists of.

    Attributes:
      mesh: of the devices; the caller puts it in use (`devices.mesh.use`).
      task: what the model is trained for, and so what is scored and generated.
      init: (key, batch) -> params, boxed with logical axes; runs the model in training mode.
      memory: (rows, length or None) -> the shapes of what the model keeps of a batch for the next;
        None: as in training.
      outputs: (params, batch, dropout key or None, memory) -> what the loss reads, and the memory
        after the batch; no key is deterministic.
      apply: (params, batch, dropout key or None) -> logits (B, T, V or C), without memory.
      start, step: the model's, with params in front: what decoding needs.
      loss: (outputs, batch) -> (loss sum, weight, sums).
      eval_step, predict_step, embed_step: (params, batch) -> what the loss reports (with the memory
        before and after), the likeliest token or label (B, T), the vectors of texts (B, T, D; None:
        the model has none); compiled once a shape.
    """

    seed: int
    mesh: Mesh
    task: Task
    data: Dataset
    model: Model
    init: Callable[[Key[Array, ""], Batch], Params]
    memory: Callable[[int, int | None], Any]
    outputs: ApplyFn
    apply: Callable[..., Float[Array, "B T _"]]
    start: Callable[..., tuple]
    step: Callable[..., tuple]
    loss: Loss
    eval_step: EvalStep
    predict_step: Callable[..., Int[Array, "B T"]]
    embed_step: Callable[..., Float[Array, "B T D"]] | None
    schedule: optax.Schedule
    optimizer: optax.GradientTransformation
    train: TrainSettings
    checkpoint: CheckpointSettings
    evaluate: EvaluateSettings
    decode: DecodeSettings

    def with_seed(self, seed: int | Int[Array, ""]) -> "Run":
        """The same with another seed, which may be traced; the step of one trains the others."""
        settings = dataclasses.replace(self.data.settings, seed=seed)
        data = dataclasses.replace(self.data, settings=settings)
        return dataclasses.replace(self, seed=seed, data=data)

    def abstract_batch(self) -> dict[str, Any]:
        """The shapes of a training batch and where its parts lie, without the data."""

        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(self.mesh, shape))
            for name, (shape, dtype) in self.data.batch_shapes().items()
        }

    @property
    def _states(self) -> state.StateMaker:
        return state.StateMaker(
            self.init,
            self.optimizer,
            metrics=(*self.task.metrics, "gradient_norm"),
            ema=self.train.ema_decay > 0,
            mesh=self.mesh,
            memory=self.memory(self.data.settings.batch_size, None),
        )

    def new_state(self, batch: Batch) -> State:
        """The state before the first step, whose batch this is."""
        return self._states.create(jax.random.key(self.seed), batch)

    def abstract_state(self) -> State:
        """Shapes and shardings of the state that training carries; nothing is computed."""
        return self._abstract_state

    @functools.cached_property
    def _abstract_state(self) -> State:
        # Not even a key, as the devices may be none that are here.
        key = jax.eval_shape(jax.random.key, self.seed)
        return self._states.abstract(key, self.abstract_batch())

    def parameter_table(self) -> list[state.Parameter]:
        """The parameters in the order of their paths; nothing is computed."""
        key = jax.eval_shape(jax.random.key, self.seed)
        return state.parameter_table(self.init, key, self.abstract_batch())

    @functools.cached_property
    def roles(self) -> dict[str, Role]:
        """What the optimizer has to know of each parameter, by its path; nothing is computed."""
        key = jax.eval_shape(jax.random.key, self.seed)
        return roles(jax.eval_shape(self.init, key, self.abstract_batch()))

    def train_step(self, outputs: ApplyFn | None = None) -> StepFn:
        """The compiled step of training (see `step.train_step`); `outputs` replaces its own."""
        return step.make_train_step(
            self.train,
            loss=self.loss,
            apply=outputs or self.outputs,
            optimizer=self.optimizer,
            schedule=self.schedule,
            layout=state.layout(self.abstract_state()),
        )

    def train_streams(self) -> Endless:
        """Training batches; of each the rows that this host's devices hold.

        Raises RuntimeError where the hosts have made different batches, since each holds a part of
        all.
        """
        streams = self.data.train_streams(local_rows(self.mesh, self.data.settings.batch_size))
        found = hosts.gather("fingerprint", streams.fingerprint)
        if others := [host for host, text in enumerate(found) if text != found[0]]:
            raise RuntimeError(
                f"the hosts {others} have made other training data of the same config than host 0: "
                "give all hosts the same files, tokenizer and versions of the libraries"
            )
        return streams

    def checkpoints(self, workdir: Path) -> Checkpoints:
        """The checkpoints in a work directory."""
        return Checkpoints(
            workdir / CHECKPOINTS,
            keep_last=self.checkpoint.keep_last,
            best_metric=self.checkpoint.best_metric,
        )

    @functools.cached_property
    def _writing_step(self) -> Callable[..., tuple]:
        """`step`, whose logits leave out what is never written; always the same object."""
        never = self.data.special.never
        if not never:
            return self.step

        def step(*args: Any) -> tuple:
            logits, cache = self.step(*args)
            return logits.at[:, np.array(never)].set(IMPOSSIBLE), cache

        return step

    def trained(self, params: Params) -> Trained:
        """What can be asked of these parameters, or of their shapes."""
        return Trained(
            params=params,
            data=self.data,
            eval_step=self.eval_step,
            memory=lambda rows: self.memory(rows, self.evaluate.memory_length),
            predict_step=self.predict_step,
            embed_step=self.embed_step,
            start=self.start,
            step=self._writing_step,
            limit=self.task.limit,
            most_positions=self.model.config.longest_row,
            decode=self.decode,
            seed=self.seed if self.decode.seed is None else self.decode.seed,
            bleu_tokenizer=self.evaluate.bleu_tokenizer,
        )
