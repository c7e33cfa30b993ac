"""Values inside a model that a caller can ask for, and sums that its layers report."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# The collection of the sums, in which they stay apart by layer until `sums_of` adds them up.
SUMS = "sums"


def observe(module: nn.Module, **values: Float[Array, "..."]) -> None:
    """Shows the values to a caller of `apply(..., mutable=["intermediates"])`, under their names.

    Other callers do not pay for them: what nothing reads is never computed.
    """
    for name, value in values.items():
        module.sow("intermediates", name, value, init_fn=tuple, reduce_fn=_newest)


def add_sum(
    module: nn.Module, name: str, total: Float[Array, ""], weight: Float[Array, ""]
) -> None:
    """Adds to the sum and to the weight that the model's outputs hold under this name.

    What several layers add under one name adds up, and a task divides the sum by the weight.
    """
    pair = jnp.asarray(total, jnp.float32), jnp.asarray(weight, jnp.float32)
    module.sow(SUMS, name, pair, init_fn=lambda: (0.0, 0.0), reduce_fn=_both)


def sums_of(module: nn.Module) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """What a module and all within it have added by now; nothing where no caller asks for it."""
    sums: dict[str, Any] = {}
    leaves = jax.tree_util.tree_leaves_with_path(
        module.variables.get(SUMS, {}), is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    for path, pair in leaves:
        # One number of each layer of a scanned stack
        name, added = path[-1].key, tuple(jnp.sum(part) for part in pair)
        sums[name] = _both(sums[name], added) if name in sums else added
    return sums


def _both(old: Any, new: Any) -> Any:
    return old[0] + new[0], old[1] + new[1]


def _newest(old: Any, new: Any) -> Any:
    return new
