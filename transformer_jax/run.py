"""What a run is made of, as plain values and functions."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Key

from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.data.dataset import Dataset
from transformer_jax.data.prepare.tokenizer import PAD_ID
from transformer_jax.data.serve.streams import TrainStreams
from transformer_jax.devices.mesh import batch_sharding, local_rows
from transformer_jax.evaluation.decoder import Decoder, DecodeSettings
from transformer_jax.evaluation.trained import Trained
from transformer_jax.models.family import (
    Batch,
    Family,
    Model,
    Outputs,
    Params,
    Role,
    roles,
    with_memory,
)
from transformer_jax.process import hosts
from transformer_jax.runs.workdir import CHECKPOINTS
from transformer_jax.tasks.task import Task
from transformer_jax.training import state
from transformer_jax.training.losses import Loss
from transformer_jax.training.probe import is_listed
from transformer_jax.training.state import State
from transformer_jax.training.step import ApplyFn, StepFn, TrainSettings, TrainStep
from transformer_jax.training.update_rules import OPTIMIZERS, Average, OptimizerSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """`config.checkpoint`, but for `every` and `at`, which are of training's intervals."""

    keep_last: int
    best_metric: str
    average_last: int
    init_from: str
    fork_from: str

    def __post_init__(self):
        if self.init_from and self.fork_from:
            raise ValueError(
                f"checkpoint.fork_from={self.fork_from!r} starts with all of a run's state, and "
                f'checkpoint.init_from={self.init_from!r} with parameters: set one of them to ""'
            )
        if self.average_last > self.keep_last:
            raise ValueError(
                f"checkpoint.average_last={self.average_last} needs as many checkpoints, but "
                f"checkpoint.keep_last={self.keep_last}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """`config.evaluate`, but for `metrics`, which are of the parts of the data."""

    checkpoint: str
    batch_size: int
    parameter_dtype: str
    bleu_tokenizer: str
    memory_length: int | None
    samples: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run consists of: settings and what is made of them, and a model to ask.

    Attributes:
      identity: what the run is, by dotted key: what differs from the default config and may not
        change.
      as_json: the content of its config.json, to be saved; nothing is read out of it.
      own_rows: the source of the rows that are not this library's, to be saved; "": none.
      data_seed: of the data alone; None: `seed`.
      mesh: of the devices; the caller puts it in use (`devices.mesh.use`).
      task: what the model is trained for, and so what is scored and generated.
      loss: (outputs, batch) -> (loss sum, weight, sums).
      schedule, transform: made of `optimizer`.
      trackers: services that get the numbers of training too.
    """

    identity: Mapping[str, object]
    as_json: Mapping[str, Any]
    own_rows: str
    seed: int
    data_seed: int | None
    mesh: Mesh
    task: Task
    data: Dataset
    family: Family
    model: Model
    loss: Loss
    optimizer: OptimizerSettings
    schedule: optax.Schedule
    transform: optax.GradientTransformation
    train: TrainSettings
    trackers: tuple[str, ...]
    checkpoint: CheckpointSettings
    evaluate: EvaluateSettings
    decode: DecodeSettings

    @functools.cached_property
    def init(self) -> state.Init:
        """Makes parameters, boxed with logical axes; the model runs in training mode for them.

        JAX traces it once: the shapes of the state and the program that makes it share that.
        """
        return jax.jit(functools.partial(self.family.init, self.model), inline=True)

    def memory(self, rows: int, length: int | None = None) -> Any:
        """The shapes of what the model keeps of a batch for the next.

        length: as of evaluate.memory_length; None: as in training.
        """
        return self.family.memory(self.model.config, rows, length)

    def outputs(
        self, params: Params, batch: Batch, rng: Key[Array, ""] | None, memory: Any
    ) -> tuple[Outputs, Any]:
        """The model's outputs, and the memory after the batch.

        rng: the key of dropout; None is deterministic.
        """
        return with_memory(self.model, params, batch, rng, memory)

    def with_seed(self, seed: int | Int[Array, ""]) -> "Run":
        """The same with another seed, which may be traced; the step of one trains the others.

        The data stays where it has a seed of its own.
        """
        if self.data_seed is not None:
            return dataclasses.replace(self, seed=seed)
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
            self.transform,
            metrics=(*self.task.metrics, *self.model.config.sums, "gradient_norm"),
            ema=self.train.ema_decay > 0 or self.average is not None,
            mesh=self.mesh,
            memory=self.memory(self.data.settings.batch_size),
        )

    def new_state(self, batch: Batch) -> State:
        """The state before the first step, whose batch this is."""
        return self._new_state(jax.random.key(self.seed), batch)

    def compile_new_state(self) -> None:
        """Compiles the program of `new_state`, which then runs at once."""
        self._new_state.lower(self._abstract_key, self.abstract_batch()).compile()

    @functools.cached_property
    def _new_state(self) -> Any:
        return self._states.program(self.abstract_state)

    @functools.cached_property
    def abstract_state(self) -> State:
        """Shapes and shardings of the state that training carries; nothing is computed."""
        return self._states.abstract(self._abstract_key, self.abstract_batch())

    @property
    def _abstract_key(self) -> Key[Array, ""]:
        # Not even a key, as the devices may be none that are here.
        key = jax.eval_shape(jax.random.key, self.seed)
        return key.update(sharding=NamedSharding(self.mesh, PartitionSpec()))

    @functools.cached_property
    def roles(self) -> dict[str, Role]:
        """What each parameter is, by its path and in their order; nothing is computed."""
        return roles(jax.eval_shape(self.init, self._abstract_key, self.abstract_batch()))

    @property
    def average(self) -> Average | None:
        """What the optimizer makes of its state to be scored, where it keeps an average."""
        return OPTIMIZERS[self.optimizer.name].average

    def train_step(self, outputs: ApplyFn | None = None) -> StepFn:
        """The compiled step of training; `outputs` replaces the model's own."""
        step = TrainStep(
            settings=self.train,
            loss=self.loss,
            apply=outputs or self.outputs,
            optimizer=self.transform,
            schedule=self.schedule,
            average=self.average,
            frozen=self.optimizer.is_frozen,
        )
        return step.program(state.layout(self.abstract_state))

    def train_streams(self) -> TrainStreams:
        """Training batches; of each the rows that this host's devices hold.

        Raises RuntimeError where the hosts have made different batches, since each holds a part of
        all.
        """
        streams = self.data.train_streams(local_rows(self.mesh, self.data.settings.batch_size))
        fingerprints = hosts.gather("fingerprint", streams.fingerprint)
        if others := [host for host, text in enumerate(fingerprints) if text != fingerprints[0]]:
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
            stays=lambda step: is_listed(step, self.train.checkpoint_at),
        )

    def trained(self, params: Params) -> Trained:
        """What can be asked of these parameters, or of their shapes."""
        decoder = None
        if self.task.limit is not None:  # otherwise it decodes nothing
            special = self.data.special
            decoder = Decoder(
                model=self.model,
                settings=self.decode,
                ends=special.ends,
                pad=PAD_ID,
                never=special.never,
                limit=self.task.limit,
                first=special.target_first,
            )
        return Trained(
            params=params,
            data=self.data,
            model=self.model,
            loss=self.loss,
            prediction=self.task.predict,
            memory=lambda rows: self.memory(rows, self.evaluate.memory_length),
            decoder=decoder,
            seed=self.seed if self.decode.seed is None else self.decode.seed,
            bleu_tokenizer=self.evaluate.bleu_tokenizer,
        )
