"""Attention masks: True where a query may look at a key."""

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
        """The mask: as `segment_mask`, and as `causal_mask` and the window say where they hold too.

        Tokens of a text stand side by side, so that the distance of two is that of their places.
        """
        mask = segment_mask(self.queries, self.keys)
        _, queries, keys = mask.shape
        if self.causal:
            mask = mask & causal_mask(queries, keys)[None]
        if self.window is None:
            return mask
        distances = keys - queries + jnp.arange(queries)[:, None] - jnp.arange(keys)[None, :]
        near = jnp.abs(distances) < self.window
        return mask & (near if self.windowed is None else near | ~self.windowed)[None]


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
