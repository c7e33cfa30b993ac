"""The blocks of ResNets (He et al. 2016, 1512.03385) whose norms have fixed statistics.

They are for imported weights: norms that never see a batch do not train a network from scratch.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.parameter import parameter


class Convolution(nn.Module):
    """A convolution without bias, then what such a norm does: y scale + offset.

    scale = w (variance + epsilon)^-0.5 and offset = b - mean scale are no part of the kernel, whose
    steps they would change; `optimizer.groups` keeps them as they are. side: of the kernel, odd.
    """

    config: Any
    channels: int
    side: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        dtype, size, axes = self.config.compute_dtype, (self.channels,), ("embed",)
        init, shape = nn.initializers.he_normal(), (self.side, self.side, x.shape[-1], *size)
        inputs = ("pixels", "pixels", "embed_out")
        kernel = parameter(self, "kernel", init, shape, inputs + axes, matrix=(3, 1), role="hidden")
        scale = parameter(self, "scale", nn.initializers.ones, size, axes, role="vector")
        offset = parameter(self, "offset", nn.initializers.zeros, size, axes, role="vector")
        x = jax.lax.conv_general_dilated(
            x.astype(dtype),
            kernel.astype(dtype),
            window_strides=(self.stride, self.stride),
            padding=[(self.side // 2, self.side // 2)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return x.astype(jnp.float32) * scale[None, None, None] + offset[None, None, None]


class Block(nn.Module):
    """relu(x + f(x)), x projected if its size changes; f narrows to a quarter in a bottleneck."""

    config: Any
    channels: int
    stride: int
    bottleneck: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        channels, stride, narrow = self.channels, self.stride, self.channels // 4
        sizes = [(channels, 3, stride), (channels, 3, 1)]
        if self.bottleneck:
            sizes = [(narrow, 1, 1), (narrow, 3, stride), (channels, 1, 1)]
        y = Convolution(self.config, *sizes[0], name="conv_0")(x)
        for number, size in enumerate(sizes[1:], start=1):
            y = Convolution(self.config, *size, name=f"conv_{number}")(jax.nn.relu(y))
        if stride > 1 or x.shape[-1] != channels:
            x = Convolution(self.config, channels, 1, stride, name="shortcut")(x)
        return jax.nn.relu(x + y)
