"""Stacks of equal blocks: one scan over the depth, so that a program does not grow with it."""

from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.models.layers.observe import SUMS

_HIDDEN = ("heads", "up", "gate")
_INWARD = (*_HIDDEN, "query", "key", "value")
_only = jax.checkpoint_policies.save_only_these_names
# The values that a layer keeps for the backward pass, by the names that `keep` gives them, from the
# most to the least; the rest is computed again (Chen et al. 2016, section 4.1). None: all is kept.
# A layer's input is always kept. What costs no product is drawn, normalised or activated again.
REMAT: dict[str, Any] = {
    "none": None,
    # Then no product is computed again but plain attention's, W R of distances, and those whose
    # results are normalised or scaled before they are kept
    "dots": _only(*_INWARD, "stream"),
    "inward": _only(*_INWARD),
    "hidden": _only(*_HIDDEN),
    "full": _only(),
}
# (value, name) -> the value under a name by which the policies of `REMAT` can keep it.
keep = checkpoint_name


def stack(block: type[nn.Module], num_layers: int, remat: str) -> Any:
    """The block repeated over depth, its parameters stacked on a leading axis `layers`.

    Args:
      block: it is called with (carry, layer, shared): the carry runs through the depth, `layer` is
        this layer's slice of stacked arrays, and `shared` is the same for every layer.
      remat: a key of `REMAT`, for the backward pass.
    """
    if (policy := REMAT[remat]) is not None:
        # A scan keeps forward and backward pass apart by itself.
        block = nn.remat(block, policy=policy, prevent_cse=False)
    return nn.scan(
        block,
        # All but parameters hold something only where a caller asks for it.
        variable_axes={"params": 0, "intermediates": 0, "perturbations": 0, SUMS: 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] (Flax says int)
        out_axes=0,
        length=num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
