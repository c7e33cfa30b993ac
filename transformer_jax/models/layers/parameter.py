"""Parameters that say what they are: axes, matrix, whether weights decay, what changes nothing."""

import functools
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

# What a parameter does, by which a parameterisation tells how its draw and its steps depend on the
# width: vectors for each token or place, matrices between layers, those to logits, and biases and
# gains of the width or of a head.
RoleName = Literal["embedding", "hidden", "output", "vector", "head_vector"]


class Share(NamedTuple):
    """What a parameterisation makes of a parameter: factors, all 1 where there is none.

    Attributes:
      draw: on what is drawn.
      deviation: on the deviation that a draw has at the base sizes.
      multiplier: on the parameter, where it is used.
      learning_rate, epsilon: on these, for Adam. Weight decay has no factor.
      width: over the base width.
    """

    draw: float = 1.0
    deviation: float = 1.0
    multiplier: float = 1.0
    learning_rate: float = 1.0
    epsilon: float = 1.0
    width: float = 1.0


@functools.partial(struct.dataclass, eq=False)
class Boxed(nn.LogicallyPartitioned):
    """A parameter with what `parameter` was told of it. A scan over depth keeps all fields."""

    matrix: tuple[int, int] | None = struct.field(default=None, pytree_node=False)
    decay: bool = struct.field(default=False, pytree_node=False)
    factor: bool = struct.field(default=False, pytree_node=False)
    role: RoleName | None = struct.field(default=None, pytree_node=False)
    by_inputs: bool = struct.field(default=False, pytree_node=False)
    share: Share = struct.field(default=Share(), pytree_node=False)


def parameter(
    module: nn.Module,
    name: str,
    init: nn.initializers.Initializer,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    *,
    matrix: tuple[int, int] | None = None,
    decay: bool | None = None,
    factor: bool = False,
    role: RoleName | None = None,
    by_inputs: bool = False,
    drawn: bool = True,
) -> Float[Array, "*shape"]:
    """`module.param`, boxed with what the mesh and the optimizer read; in float32, as it is used.

    A function of the module in whose `setup` or `nn.compact` method it is called.

    Args:
      axes: the logical name of each dimension, by which `devices.mesh` lays the parameter out.
      matrix: how many of the axes are inputs and how many, after those, are outputs of one matrix;
        None for a vector.
      decay: whether weight decay applies (None: to matrices).
      factor: whether the model computes at 1 what one without this parameter does.
      role: for a family whose models are parameterised; a factor has none.
      by_inputs: whether the size of a matrix's draw follows its inputs alone, and not both sides,
        as Xavier's does.
      drawn: whether it takes a turn among the draws of its module. One turn more changes all of
        them, even if it is the last: a scan over depth goes through its module once for the
        shapes, and draws in the turns after those. What a setting adds and a constant fills takes
        none, so that models with and without it start alike.

    Raises:
      ValueError: there is a value of another shape (of what is drawn Flax's ScopeParamShapeError).
    """
    decays = matrix is not None if decay is None else decay
    # Where there is a value, Flax traces what would draw it, for the shape alone.
    draw = nn.initializers.zeros if module.has_variable("params", name) else init

    def boxed(key, shape):
        value = draw(key, shape)
        return Boxed(
            value, axes, matrix=matrix, decay=decays, factor=factor, role=role, by_inputs=by_inputs
        )

    value: Any
    if drawn:
        value = module.param(name, boxed, shape)  # Flax unboxes it
    else:
        value = module.variable("params", name, boxed, None, shape).value
        if value.shape != shape:  # as Flax asks of the others
            raise ValueError(f"the parameter {name} is of shape {value.shape}, expected {shape}")
    return value.astype(jnp.float32)  # what is only asked may be held in bfloat16


def times(multiplier: float, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The product; x itself where the multiplier is 1, so that nothing is computed."""
    return x if multiplier == 1.0 else multiplier * x
