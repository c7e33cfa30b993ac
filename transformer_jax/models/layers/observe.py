"""Values inside a model that a caller can ask for."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float


def observe(module: nn.Module, **values: Float[Array, "..."]) -> None:
    """Shows the values to a caller of `apply(..., mutable=["intermediates"])`, under their names.

    Other callers do not pay for them: what nothing reads is never computed.
    """
    for name, value in values.items():
        module.sow("intermediates", name, value, init_fn=tuple, reduce_fn=_newest)


def _newest(old: Any, new: Any) -> Any:
    return new
