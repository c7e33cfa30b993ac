"""Attention that never holds all of its weights: cuDNN's kernel, for NVIDIA GPUs. Never run yet."""

from typing import Literal

import jax
from jaxtyping import Array, Bool, Float


def cudnn_attention(
    queries: Float[Array, "B T H K"],
    keys: Float[Array, "B S H K"],
    values: Float[Array, "B S H K"],
    mask: Bool[Array, "#B #T S"],
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B T H K"]:
    """softmax(Q K^T) V under a mask of all pairs, by `jax.nn.dot_product_attention`.

    Queries come scaled. The kernel takes bfloat16, heads of a multiple of 8 up to 128, and even
    lengths. A query that sees nothing gets a finite result.

    Args:
      implementation: "xla" computes the same by plain products, on any device.
    """
    # No residual of the kernel has a name, so that a policy of remat computes it again.
    return jax.nn.dot_product_attention(
        queries, keys, values, mask=mask[:, None], scale=1.0, implementation=implementation
    )
