"""Small runs of each shape, and meshes of up to eight devices to train them on."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.defaults import make_optimizer, train_settings
from tests.models import tiny
from transformer_jax.devices import mesh as sharding
from transformer_jax.models import family
from transformer_jax.models.family import roles
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.task import Task
from transformer_jax.training import cross_entropy
from transformer_jax.training import state as train_state
from transformer_jax.training.losses import Loss
from transformer_jax.training.state import State
from transformer_jax.training.step import TrainStep

MESHES = {
    "one device": (1, 1, 1, 1),
    "data": (8, 1, 1, 1),
    "fsdp": (1, 8, 1, 1),
    "tensor and data": (2, 1, 4, 1),
    "data, fsdp and tensor": (2, 2, 2, 1),
    "fsdp, tensor and sequence": (1, 2, 2, 2),
}
# No two sizes are equal, so that an array's shape identifies it.
ROWS, LENGTH = 16, 12
SIZES = {"d_model": 32, "num_heads": 4, "head_dim": 6, "d_ff": 40, "vocab_size": 56}
_TASKS = {
    "encoder_decoder": "translation",
    "encoder_only": "masked_lm",
    "decoder_only": "causal_lm",
}
SHAPES = tuple(_TASKS)
_SIDES = {
    "encoder_decoder": ("inputs", "targets"),
    "encoder_only": ("inputs",),
    "decoder_only": ("targets",),
}


def mesh(name: str) -> jax.sharding.Mesh:
    return sharding.make_mesh(sharding.MeshSettings(*MESHES[name], ""), jax.devices())


def batch(shape: str, number: int) -> Any:
    """Batch `number`: one text per row, of different lengths."""
    generator = np.random.default_rng(number)
    made = {}
    for side in _SIDES[shape]:
        ids = generator.integers(4, SIZES["vocab_size"], (ROWS, LENGTH))
        real = np.arange(LENGTH)[None] < generator.integers(LENGTH // 2, LENGTH + 1, (ROWS, 1))
        positions = np.where(real, np.arange(LENGTH)[None], 0)
        made |= {side: ids * real, f"{side}_segment_ids": real, f"{side}_positions": positions}
    if shape == "encoder_only":
        made["targets"] = made["inputs"] * (generator.random((ROWS, LENGTH)) < 0.3)
    return {name: array.astype(np.int32) for name, array in made.items()}


@dataclasses.dataclass(frozen=True)
class Small:
    """A model and what trains it."""

    shape: str
    scheme: str = "post_ln"
    recurrence: str = ""  # "": a Transformer
    optimizer: str = "adam"
    accumulation_steps: int = 1
    changes: tuple[tuple[str, Any], ...] = ()  # to the model's config

    @functools.cached_property
    def model(self) -> Any:
        settings = {
            "architecture": self.shape,
            # ReLU has a kink: where one device's rounding falls left of it and the mesh's right
            # of it, a unit has a gradient in one of the two, and Adam makes a step of it.
            "activation": "gelu",
            "dropout_rate": 0.1,
            "attention_dropout_rate": 0.1,
        }
        if self.recurrence:
            shared = {"vocab_size": SIZES["vocab_size"], "d_model": SIZES["d_model"]}
            changes = shared | {"dropout_rate": 0.1} | dict(self.changes)
            return tiny.model(tiny.recurrent(self.recurrence, self.shape, **changes))
        changes = SIZES | settings | dict(self.changes)
        return tiny.model(tiny.config(self.scheme, **changes))

    @property
    def init(self) -> Any:
        return functools.partial(tiny.family_of(self.model.config).init, self.model)

    def outputs(self, params, batch, rng, memory) -> Any:
        return family.with_memory(self.model, params, batch, rng, memory)

    @property
    def task(self) -> Task:
        return TASKS[_TASKS[self.shape]]

    @property
    def loss(self) -> Loss:
        return self.task.bound_loss(cross_entropy.LossSettings(0.1, 0.0))

    def new(self, mesh: jax.sharding.Mesh) -> State:
        """The state before the first step."""
        return self._states(mesh).create(*self._drawn_from(mesh))

    def abstract(self, mesh: jax.sharding.Mesh) -> State:
        """Its shapes and shardings."""
        return self._states(mesh).abstract(*self._drawn_from(mesh))

    def _states(self, mesh: jax.sharding.Mesh) -> train_state.StateMaker:
        return train_state.StateMaker(
            self.init,
            self._transform,
            metrics=(*cross_entropy.METRICS, "gradient_norm"),
            ema=False,
            mesh=mesh,
            memory=tiny.family_of(self.model.config).memory(self.model.config, ROWS, None),
        )

    def _drawn_from(self, mesh: jax.sharding.Mesh) -> Any:
        return jax.random.key(0), sharding.place(mesh, batch(self.shape, 0))

    def first(self) -> State:
        """The first state without its key, drawn on one device and held on the host."""
        alone = mesh("one device")
        with sharding.use(alone):
            state = self.new(alone)
        return jax.tree.map(np.asarray, dataclasses.replace(state, rng=None))

    def step(self, mesh: jax.sharding.Mesh) -> Any:
        step = TrainStep(
            settings=train_settings(accumulation_steps=self.accumulation_steps, log_every=5),
            loss=self.loss,
            apply=self.outputs,
            optimizer=self._transform,
            schedule=_schedule,
        )
        return step.program(train_state.layout(self.abstract(mesh)))

    def lowered(self, mesh: jax.sharding.Mesh) -> Any:
        """The training step, from shapes alone."""
        with sharding.use(mesh):
            state = self.abstract(mesh)
            shapes = {
                name: jax.ShapeDtypeStruct(
                    rows.shape, rows.dtype, sharding=sharding.batch_sharding(mesh, rows.shape)
                )
                for name, rows in batch(self.shape, 0).items()
            }
            return self.step(mesh).lower(state, shapes)

    @functools.cached_property
    def roles(self) -> Any:
        return roles(jax.eval_shape(self.init, jax.random.key(0), batch(self.shape, 0)))

    @functools.cached_property
    def _transform(self) -> Any:
        # Gradients that are rounding alone are 1e-11 here; with 1e-9 they would make steps.
        settings = {"epsilon": 1e-8, "clip_norm": 1.0}
        return make_optimizer(self.optimizer, _schedule, lambda: self.roles, **settings)


def _schedule(count):
    return jnp.float32(1e-3)
