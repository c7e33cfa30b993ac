"""The attention kernels: what computes heads from queries, keys and values."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Bool, Float

from transformer_jax.models.layers.kernels import cudnn, xla
from transformer_jax.models.layers.masks import Segments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One row.

    Attributes:
      attend: (queries, keys, values, mask or segments, weights) -> heads (B, T, H, K).
        weights: (queries, keys, mask) -> the attention weights, for a kernel that holds them.
      holds_weights: whether it holds the attention weights of whole rows.
      reads_segments: whether it reads segments in place of a mask.
      platforms: the kinds of device that it runs on; None: all.
      any_score: whether scores may be other than products of queries and keys.
      drops: whether it can drop attention weights.
      dtypes: of the products that it takes; None: all.
      head_dims: that it takes; None: all.
    """

    attend: Callable[..., Any]
    holds_weights: bool = False
    reads_segments: bool = False
    platforms: tuple[str, ...] | None = None
    any_score: bool = False
    drops: bool = False
    dtypes: tuple[str, ...] | None = None
    head_dims: range | None = None


def _splash(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    segments: Segments,
    weights: xla.Weights,
) -> Float[Array, "B T H K"]:
    # Only here, since importing Pallas takes long and other kernels do without it.
    from transformer_jax.models.layers.kernels import splash

    del weights
    return splash.splash_attention(queries, keys, values, segments)


KERNELS = {
    "xla": Kernel(attend=xla.attend, holds_weights=True, any_score=True, drops=True),
    "splash": Kernel(attend=_splash, reads_segments=True, platforms=("tpu",)),
    "cudnn": Kernel(
        attend=lambda queries, keys, values, mask, weights: cudnn.cudnn_attention(
            queries, keys, values, mask
        ),
        platforms=("gpu",),
        dtypes=("bfloat16",),
        head_dims=range(8, 129, 8),
    ),
}


def attend(
    kernel: str,
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    mask: Bool[Array, "#B #T S"] | Segments,
    weights: xla.Weights,
) -> Float[Array, "B T H K"]:
    """Attends by the kernel of that name.

    Plain products do so where it reads segments and there is a mask instead, as of a cache.
    """
    row = KERNELS[kernel]
    if row.reads_segments and not isinstance(mask, Segments):
        return xla.attend(queries, keys, values, mask, weights)
    return row.attend(queries, keys, values, mask, weights)
