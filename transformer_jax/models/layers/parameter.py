"""Parameters that say what they are: axes, matrix, whether weights decay, what changes nothing."""

import functools

import flax.linen as nn
from flax import struct
from jaxtyping import Array, Float


@functools.partial(struct.dataclass, eq=False)
class Boxed(nn.LogicallyPartitioned):
    """A parameter with what `parameter` was told of it. A scan over depth keeps all fields."""

    matrix: tuple[int, int] | None = struct.field(default=None, pytree_node=False)
    decay: bool = struct.field(default=False, pytree_node=False)
    factor: bool = struct.field(default=False, pytree_node=False)


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
) -> Float[Array, "*shape"]:
    """`module.param`, boxed with what the mesh and the optimizer read.

    A function of the module in whose `setup` or `compact` method it is called.

    Args:
      axes: the logical name of each dimension, by which `devices.mesh` lays the parameter out.
      matrix: how many of the axes are inputs and how many, after those, are outputs of one matrix;
        None for a vector.
      decay: whether weight decay applies (None: to matrices).
      factor: whether the model computes at 1 what one without this parameter does.
    """
    decays = matrix is not None if decay is None else decay

    def boxed(key, shape):
        return Boxed(init(key, shape), axes, matrix=matrix, decay=decays, factor=factor)

    return module.param(name, boxed, shape)  # pyright: ignore[reportReturnType] (Flax unboxes it)
