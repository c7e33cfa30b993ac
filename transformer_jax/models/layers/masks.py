"""Attention masks: True where a query may look at a key."""

import dataclasses

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

# The score of what is not seen. Finite, so that a row that sees nothing (padding) gives no NaN.
MASKED = -1e30


@struct.dataclass
class Segments:
    """What a mask follows from, for kernels that hold none, and for layers whose masks differ.

    queries, keys: the example that each token belongs to (0 is padding). causal: whether a query
    sees no key that stands after it; of more keys than queries, the last ones stand beside these.
    window: the distance from which on a query sees no key; None: all are near enough. windowed:
    whether that holds, where it is known on the device alone; None: it does.
    """

    queries: Int[Array, "B T"]
    keys: Int[Array, "B S"]
    causal: bool = struct.field(pytree_node=False)
    window: int | None = struct.field(pytree_node=False, default=None)
    windowed: Bool[Array, ""] | None = None

    def pairs(self) -> Bool[Array, "B T S"]:
        """The mask: as `segment_mask`, and as `causal_mask` and `near_mask` where they hold too."""
        mask = segment_mask(self.queries, self.keys)
        if self.causal:
            mask = mask & causal_mask(*mask.shape[1:])[None]
        if self.window is None:
            return mask
        near = near_mask(self.queries.shape[1], self.keys.shape[1], self.window)
        return mask & (near if self.windowed is None else near | ~self.windowed)[None]

    def of_layer(self, windowed: Bool[Array, ""]) -> "Segments":
        """Those of a layer that has the window or, as a number on the device says, has it not."""
        return dataclasses.replace(self, windowed=windowed)


def segment_mask(
    query_segment_ids: Int[Array, "B T"], key_segment_ids: Int[Array, "B S"]
) -> Bool[Array, "B T S"]:
    """Pairs of tokens of the same example; no query sees padding (segment 0).

    A padded query sees nothing at all: attention gives it a finite result that no loss reads.
    """
    same = query_segment_ids[:, :, None] == key_segment_ids[:, None, :]
    return same & (key_segment_ids > 0)[:, None, :]


def causal_mask(queries: int, keys: int | None = None) -> Bool[Array, "T S"]:
    """Each query sees its own key and those before; that of the last one is the last."""
    keys = queries if keys is None else keys
    return keys - queries + jnp.arange(queries)[:, None] >= jnp.arange(keys)[None, :]


def near_mask(queries: int, keys: int, window: int) -> Bool[Array, "T S"]:
    """Each query sees the keys at a distance below `window`; that of the last one is the last.

    Tokens of a text stand side by side, so that the distance of two is that of their places.
    """
    distances = keys - queries + jnp.arange(queries)[:, None] - jnp.arange(keys)[None, :]
    return jnp.abs(distances) < window
