"""Parameters with the names of their axes beside them."""

import flax.linen as nn
from jaxtyping import Array, Float


def parameter(
    module: nn.Module,
    name: str,
    init: nn.initializers.Initializer,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
) -> Float[Array, "*shape"]:
    """`module.param`, boxed with one logical axis a dimension: what `sharding` lays out.

    A function of the module in whose `setup` or `compact` method it is called.
    """
    return module.param(name, nn.with_logical_partitioning(init, axes), shape)  # pyright: ignore
