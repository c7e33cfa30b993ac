"""What training carries from step to step, made from a model's `init`."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Key

from transformer_jax.devices.mesh import batch_sharding, follow, shardings
from transformer_jax.models.family import Batch, Sums

# key, batch -> parameters, whose leaves may be boxed with their logical axes
Init = Callable[[Key[Array, ""], Batch], Any]
RECENT = 128  # steps whose losses the state keeps


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "ema_params", "opt_state", "rng", "memory", "window", "recent"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class State:
    """All that a run needs to continue, apart from the position in the data.

    Attributes:
      step: updates made.
      ema_params: the average of `params` that is scored in their place, a moving one or that which
        the optimizer keeps, or None where there is none.
      rng: the key that every step's dropout key is folded from.
      memory: what the model keeps of the batch before, rows first; () where it keeps nothing.
      window: sums of the logging window that is not finished yet, so that a restart in its middle
        loses nothing.
      recent: the losses of the last steps, so that a restart finds the same spikes. The loss of the
        step after n updates is in place n mod R; NaN where there was none.
    """

    step: Int[Array, ""]
    params: Any
    ema_params: Any
    opt_state: optax.OptState
    rng: Key[Array, ""]
    memory: Any
    window: Sums
    recent: Float[Array, "R"]

    @property
    def dropout_key(self) -> Key[Array, ""]:
        """The next step's dropout key."""
        return jax.random.fold_in(self.rng, self.step)

    @property
    def evaluated(self) -> Any:
        """The parameters to score: the average where there is one."""
        return self.params if self.ema_params is None else self.ema_params


@dataclasses.dataclass(frozen=True)
class StateMaker:
    """Makes the state before the first step."""

    init: Init
    optimizer: optax.GradientTransformation
    metrics: Sequence[str]  # the names that the training step sums over a logging window
    ema: bool  # whether an average of the parameters is kept; it begins as they do
    mesh: Mesh
    memory: Any = ()  # the shapes of what the model keeps of a batch

    def create(self, key: Key[Array, ""], batch: Batch) -> State:
        """The state, every array of it made where it stays on the mesh.

        `batch` is one global batch: `init` sees its shapes, and Admin's `init` its values.
        """
        return self.program(self.abstract(key, batch))(key, batch)

    def program(self, abstract: State) -> Any:
        """`create`, as one program, of what `abstract` returns."""

        def new(key: Key[Array, ""], batch: Batch) -> State:
            init_key, rng = split_key(key)
            return self._first(_unboxed(self.init(init_key, batch)), rng)

        return jax.jit(new, out_shardings=layout(abstract))

    def abstract(self, key: Key[Array, ""], batch: Batch) -> State:
        """The same of `jax.ShapeDtypeStruct`s with shardings: nothing is computed."""
        boxed = jax.eval_shape(self.init, key, batch)
        params, where = _unboxed(boxed), shardings(self.mesh, boxed)
        shapes = jax.eval_shape(self._first, params, key)
        whole = NamedSharding(self.mesh, PartitionSpec())
        everywhere = dataclasses.replace(
            jax.tree.map(lambda _: whole, shapes),
            params=where,
            ema_params=where if self.ema else None,
            opt_state=follow(self.mesh, shapes.opt_state, params, where),
            memory=jax.tree.map(
                lambda leaf: batch_sharding(self.mesh, leaf.shape[:1]), shapes.memory
            ),
        )
        return jax.tree.map(
            lambda leaf, where: leaf.update(sharding=where, weak_type=False), shapes, everywhere
        )

    def _first(self, params: Any, rng: Key[Array, ""]) -> State:
        return State(
            step=jnp.zeros((), jnp.int32),
            params=params,
            ema_params=params if self.ema else None,
            opt_state=self.optimizer.init(params),
            rng=rng,
            memory=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.memory),
            window={name: (jnp.zeros(()), jnp.zeros(())) for name in self.metrics},
            recent=jnp.full(RECENT, jnp.nan),
        )


def layout(state: State) -> Any:
    """A `State` of the shardings of this one's arrays; it may be abstract."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def split_key(key: Key[Array, ""]) -> tuple[Key[Array, ""], Key[Array, ""]]:
    """The key of `init`, and the one that every step's dropout key is folded from."""
    init_key, rng = jax.random.split(key)
    return init_key, rng


def _unboxed(boxed: Any) -> Any:
    # Where a mesh is in use, `nn.unbox` would constrain the values by Flax's rules.
    return nn.meta.map_axis_meta(operator.attrgetter("value"), boxed)
