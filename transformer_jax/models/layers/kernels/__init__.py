"""The attention kernels: what computes heads from queries, keys and values.

Queries come scaled. A query that sees nothing gets a finite result.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.layers.stack import keep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """One row.

    Attributes:
      attend: (queries, keys, values, mask or segments, weights, softcap) -> heads (B, T, H, K).
        weights: (queries, keys, mask) -> attention weights (B, H, T, S), after dropout.
        softcap: that of the scores, if any.
      plain: whether it attends by `weights`, and so by any score and with dropout.
      caps: whether it can cap scores.
      reads_segments: whether it reads segments in place of a mask.
      platforms: the kinds of device that it runs on; None: all.
      dtypes: of the products that it takes; None: all.
      head_dims: that it takes; None: all.
    """

    attend: Callable[..., Any]
    plain: bool = False
    caps: bool = True
    reads_segments: bool = False
    platforms: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    head_dims: range | None = None


def _products(queries, keys, values, mask, weights, softcap=None):
    """The values' mean under `weights`, which holds those of all pairs; XLA fuses what it can."""
    return keep(jnp.einsum("BHTS,BSHK->BTHK", weights(queries, keys, mask), values), "heads")


def _splash(queries, keys, values, segments, weights, softcap=None):
    # Only here, since importing Pallas takes long and other kernels do without it.
    from transformer_jax.models.layers.kernels import splash

    del weights
    return splash.splash_attention(queries, keys, values, segments, softcap)


def cudnn_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    mask: Bool[Array, "#B T S"],
    weights: Any = None,
    softcap: None = None,
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B T H K"]:
    """softmax(Q K^T) V by cuDNN, which never holds all weights, for NVIDIA GPUs.

    Args:
      implementation: "xla" computes the same by plain products, on any device.
    """
    del weights, softcap
    length = queries.shape[1]
    # Of odd lengths it has no gradients, so a last token is added, which no other one sees.
    queries, keys, values = (_even(x, 1) for x in (queries, keys, values))
    mask = _even(mask, 1, 2)[:, None]
    # No residual of the kernel has a name, so that a policy of remat computes it again.
    heads = jax.nn.dot_product_attention(
        queries, keys, values, mask=mask, scale=1.0, implementation=implementation
    )
    return heads[:, :length]


def _even(x: Array, *axes: int) -> Array:
    return jnp.pad(x, [(0, size % 2 * (axis in axes)) for axis, size in enumerate(x.shape)])


KERNELS = {
    "xla": Kernel(attend=_products, plain=True),
    "splash": Kernel(attend=_splash, reads_segments=True, platforms=("tpu",)),
    "cudnn": Kernel(
        attend=cudnn_attention,
        caps=False,
        platforms=("gpu",),
        dtypes=("bfloat16",),
        head_dims=range(8, 129, 8),
    ),
}
