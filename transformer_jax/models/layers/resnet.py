"""The blocks of ResNets (He et al. 2016, 1512.03385) whose norms have fixed statistics.

They are for imported weights: norms that never see a batch do not train a network from scratch.
"""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from transformer_jax.models.layers.affine import ZEROS, convolution
from transformer_jax.models.layers.parameter import parameter


class Convolution(nn.Module):
    """A convolution without bias, then what such a norm does: y scale + offset.

    scale = w (variance + epsilon)^-0.5 and offset = b - mean scale are no part of the kernel, whose
    steps they would change; `optimizer.groups` keeps them as they are. size: as of `convolution`.
    """

    config: Any
    size: tuple[int, int]
    stride: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        def vector(name, init):
            own = parameter(self, name, init, self.size[:1], ("embed",), role="vector")
            return own[None, None, None]

        x = convolution(self, "kernel", x, self.size, self.stride)
        return x * vector("scale", nn.initializers.ones) + vector("offset", ZEROS)


class Block(nn.Module):
    """relu(x + f(x)), x projected if its size changes; f narrows to a quarter in a bottleneck."""

    config: Any
    channels: int
    stride: int
    bottleneck: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        channels, stride, narrow = self.channels, self.stride, self.channels // 4
        sizes = [((channels, 3), stride), ((channels, 3), 1)]
        if self.bottleneck:
            sizes = [((narrow, 1), 1), ((narrow, 3), stride), ((channels, 1), 1)]
        y = x
        for number, size in enumerate(sizes):
            y = Convolution(self.config, *size, name=f"conv_{number}")(y)
            y = jax.nn.relu(y) if number + 1 < len(sizes) else y
        if stride > 1 or x.shape[-1] != channels:
            x = Convolution(self.config, (channels, 1), stride, name="shortcut")(x)
        return jax.nn.relu(x + y)
