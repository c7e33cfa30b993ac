"""Stacks of equal blocks: one scan over the depth, so that a program does not grow with it."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

# What of each layer is kept for the backward pass, from the most to the least; the rest is computed
# again (Chen et al. 2016, section 4.1). None: all is kept.
REMAT: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # products with parameters
    "full": jax.checkpoint_policies.nothing_saveable,
}


def stack(block: type[nn.Module], methods: Sequence[str], num_layers: int, remat: str) -> Any:
    """The block repeated over depth, its parameters stacked on a leading axis `layers`.

    Args:
      block: its methods take (carry, layer, shared): the carry runs through the depth, `layer` is
        this layer's slice of stacked arrays, and `shared` is the same for every layer.
      remat: a key of `REMAT`, for the backward pass of `__call__`.
    """
    if policy := REMAT[remat]:
        # A scan keeps forward and backward pass apart by itself.
        block = nn.remat(block, policy=policy, prevent_cse=False)
    return nn.scan(
        block,
        # The last two hold something only where a caller asks for it.
        variable_axes={"params": 0, "intermediates": 0, "perturbations": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] (Flax says int)
        out_axes=0,
        length=num_layers,
        methods=list(methods),
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
