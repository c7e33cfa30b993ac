"""Small runs of each shape, and meshes of up to eight devices to train them on."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.devices import mesh as sharding
from transformer_jax.devices.mesh import AXES
from transformer_jax.models.recurrent.config import RECURRENCES
from transformer_jax.run import Run
from transformer_jax.training.state import State

MESHES = {
    "one device": (1, 1, 1, 1),
    "data": (8, 1, 1, 1),
    "tensor and data": (2, 1, 4, 1),
    "data, fsdp and tensor": (2, 2, 2, 1),
    "fsdp, tensor and sequence": (1, 2, 2, 2),
}
ALONE = MESHES["one device"]
# No two sizes are equal, so that an array's shape identifies it.
ROWS, LENGTH = 16, 12
SIZES = {"d_model": 32, "num_heads": 4, "head_dim": 6, "d_ff": 40, "vocab_size": 56}
SETTINGS: dict[str, Any] = {
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 0,
    # Gradients that are rounding alone are 1e-11 here; with 1e-9 they would make steps.
    "optimizer.epsilon": 1e-8,
    "optimizer.clip_norm": 1.0,
    "train.log_every": 5,
}
_SIDES = {
    "encoder_decoder": ("inputs", "targets"),
    "encoder_only": ("inputs",),
    "decoder_only": ("targets",),
}


def batch(shape: str, number: int) -> Any:
    """Batch `number`: one text per row, of different lengths."""
    generator = np.random.default_rng(number)
    arrays = {}
    for side in _SIDES[shape]:
        ids = generator.integers(4, SIZES["vocab_size"], (ROWS, LENGTH))
        real = np.arange(LENGTH)[None] < generator.integers(LENGTH // 2, LENGTH + 1, (ROWS, 1))
        positions = np.where(real, np.arange(LENGTH)[None], 0)
        arrays |= {side: ids * real, f"{side}_segment_ids": real, f"{side}_positions": positions}
    if shape == "encoder_only":
        arrays["targets"] = arrays["inputs"] * (generator.random((ROWS, LENGTH)) < 0.3)
    return {name: array.astype(np.int32) for name, array in arrays.items()}


@dataclasses.dataclass(frozen=True)
class Small:
    """A run, on whichever mesh. changes: of `config.model`."""

    shape: str
    scheme: str = "post_ln"
    recurrence: str = ""  # "": a Transformer
    accumulation_steps: int = 1
    changes: tuple[tuple[str, Any], ...] = ()

    @functools.cache  # noqa: B019 (few, and all are used to the end)
    def on(self, mesh: tuple[int, ...]) -> Run:
        """The run, on a mesh of these sizes; nothing is read."""
        model = {"architecture": self.shape, "vocab_size": SIZES["vocab_size"], "num_layers": 2}
        model |= {"d_model": SIZES["d_model"], "dropout_rate": 0.1, "embedding_dropout_rate": 0.0}
        if self.recurrence:
            layers = RECURRENCES[self.recurrence].residual_from or 2  # as few as have all there is
            model |= {"family": "recurrent", "recurrence": self.recurrence, "num_layers": layers}
        else:
            # ReLU has a kink: where one device's rounding falls left of it and the mesh's right
            # of it, a unit has a gradient in one of the two, and Adam makes a step of it.
            model |= {"residual": self.scheme, "activation": "gelu", "attention_dropout_rate": 0.1}
            model |= SIZES
        changes = {f"model.{name}": value for name, value in (model | dict(self.changes)).items()}
        changes |= {f"mesh.{axis}": size for axis, size in zip(AXES, mesh, strict=True)}
        lengths = ("max_source", "max_target", "row_source", "row_target")
        changes |= {f"data.{name}_length": LENGTH for name in lengths}
        changes |= {"data.batch_size": ROWS, "train.accumulation_steps": self.accumulation_steps}
        return build(load(default.__file__, SETTINGS | changes))

    def new(self, mesh: tuple[int, ...]) -> State:
        """The state before the first step."""
        run = self.on(mesh)
        with sharding.use(run.mesh):
            return run.new_state(sharding.place(run.mesh, batch(self.shape, 0)))

    def first(self) -> State:
        """The first state without its key, drawn on one device and held on the host."""
        return jax.tree.map(np.asarray, dataclasses.replace(self.new(ALONE), rng=None))

    def compiled(self, mesh: tuple[int, ...]) -> Any:
        """The training step, from shapes alone."""
        run = self.on(mesh)
        with sharding.use(run.mesh):
            return run.train_step().lower(run.abstract_state, run.abstract_batch()).compile()
