"""Patches to vectors: STEMS is the list of what makes a vector of each."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.affine import ZEROS, affine, convolution
from transformer_jax.models.layers.embeddings import look_up
from transformer_jax.models.layers.parameter import parameter


class PatchEmbedding(nn.Module):
    """A vector of each patch by the config's stem, and learned ones at the places before patches.

    Bytes become (u / 255 - mean) / std, and 0 where there is no patch.
    """

    config: Any

    @nn.compact
    def __call__(
        self,
        patches: UInt8[Array, "B T PPC"],
        grid: Int[Array, "B T 4"],
        segments: Int[Array, "B T"],
        positions: Int[Array, "B T"],
    ) -> Float[Array, "B T D"]:
        """grid: row, column, rows and columns of each patch's image; 0 before the patches."""
        config, real = self.config, grid[..., 2] > 0
        x = normalised(patches, config.patch_size, config.pixel_mean, config.pixel_std)
        x = jnp.where(real[..., None], x, 0.0)
        x = STEMS[config.stem].module(config, name="stem")(x, grid, real)
        if config.prefix_tokens:
            size, axes = (config.prefix_tokens, config.d_model), ("positions", "embed")
            prefix = parameter(self, "prefix", ZEROS, size, axes, matrix=(1, 1), role="embedding")
            vectors = look_up(prefix, jnp.minimum(positions, config.prefix_tokens - 1))
            x = jnp.where(((segments > 0) & ~real)[..., None], vectors, x)
        return constrain(x, "batch", "length")


def normalised(
    patches: UInt8[Array, "B T PPC"],
    patch_size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Float[Array, "B T PPC"]:
    """(u / 255 - mean) / std. mean, std: of each channel, or one number of all."""
    x = patches.astype(jnp.float32).reshape(*patches.shape[:2], patch_size**2, -1)
    shift, scale = (jnp.array(values)[None, None, None] for values in (mean, std))
    return ((x / 255 - shift) / scale).reshape(patches.shape)


class LinearStem(nn.Module):
    """x W + b: a convolution whose stride is its size (Dosovitskiy et al. 2021, equation 1)."""

    config: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T PPC"], grid: Int[Array, "B T 4"], real: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        return affine(self, "kernel", x, self.config.d_model, ("pixels", "embed"), "embedding")


class ConvStem(nn.Module):
    """Convolutions of 3x3 and stride 2 down to one vector a patch, then a matrix.

    Xiao et al. 2021 (2106.14881), section 4, without norms: log2(P) of them, each followed by ReLU,
    whose channels double up to D. Patches lie where they do in their image, so that images may have
    several sizes: what lies beyond one is 0 before each convolution.
    """

    config: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T PPC"], grid: Int[Array, "B T 4"], real: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Raises ValueError where the sides of patches cannot be halved down to one."""
        config, side = self.config, self.config.patch_size
        halvings = side.bit_length() - 1
        if side < 2 or side != 2**halvings or config.d_model % (side // 2):
            raise ValueError(
                f"model.stem='conv' halves model.patch_size={side} down to 1 while channels double "
                f"to model.d_model={config.d_model}: make the one a power of 2, from 2 on, and the "
                "other a multiple of half of it"
            )
        canvas = Canvas(config.grid, grid, real)
        x, inside = canvas.image(x, side), canvas.image(real[..., None].astype(x.dtype), 1)
        for number in range(halvings):
            side //= 2
            size, axis = (config.d_model // side, 3), "embed_out" if number else "channels"
            x = jax.nn.relu(convolution(self, f"conv_{number}", x, size, 2, axis=axis, bias=True))
            x = x * jnp.repeat(jnp.repeat(inside, side, axis=1), side, axis=2)
        return canvas.patches(convolution(self, "projection", x, (config.d_model, 1), bias=True))


class ResNetStem(nn.Module):
    """A ResNet (He et al. 2016, 1512.03385), then a matrix (Carion et al. 2020).

    It is for imported weights: norms that never see a batch do not train a network from scratch.

    As there, what lies beyond a smaller image is 0 in the pixels, and not before each convolution.
    `resnet_width` is the number of channels of its first convolution, and `resnet_depths` are the
    blocks of each stage, whose channels double.
    """

    config: Any
    bottleneck: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T PPC"], grid: Int[Array, "B T 4"], real: Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Raises ValueError where the network does not make one vector of each patch."""
        config, depths = self.config, self.config.resnet_depths
        side = 2 ** (len(depths) + 1)
        if config.patch_size != side or min(depths) < 1:
            raise ValueError(
                f"model.resnet_depths={depths} are {len(depths)} stages, which make a vector of "
                f"{side}x{side} pixels: set model.patch_size={config.patch_size} to that, and each "
                "depth to 1 at least"
            )
        canvas = Canvas(config.grid, grid, real)
        x = Convolution(config, (config.resnet_width, 7), 2, name="entry")(canvas.image(x, side))
        window, strides, padding = (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, strides, padding)
        for stage, depth in enumerate(depths):
            channels = config.resnet_width * 2**stage * (4 if self.bottleneck else 1)
            for block in range(depth):
                stride, name = 2 if stage and not block else 1, f"stage_{stage}_block_{block}"
                x = Block(config, channels, stride, self.bottleneck, name=name)(x)
        axes, init = ("embed_out", "embed"), nn.initializers.lecun_normal()
        return canvas.patches(affine(self, "projection", x, config.d_model, axes, "hidden", init))


class Convolution(nn.Module):
    """A convolution without bias, then what a norm with fixed statistics does: y scale + offset.

    scale = w (variance + epsilon)^-0.5 and offset = b - mean scale are no part of the kernel, whose
    steps they would change; `optimizer.groups` keeps them as they are. size: as of `convolution`.
    """

    config: Any
    size: tuple[int, int]
    stride: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w D"]:
        def vector(name, init):
            weights = parameter(self, name, init, self.size[:1], ("embed",), role="vector")
            return weights[None, None, None]

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


class Canvas(NamedTuple):
    """Rows of patches as images and back, where each row has one image at most.

    Attributes:
      size: rows and columns of patches of the largest image.
      grid, real: of the patches, and whether there is one.
    """

    size: tuple[int, int]
    grid: Int[Array, "B T 4"]
    real: Bool[Array, "B T"]

    @property
    def _places(self) -> Int[Array, "B T"]:
        """Where each patch lies among those of the largest image; beyond them: there is none."""
        rows, columns = self.size
        return jnp.where(self.real, self.grid[..., 0] * columns + self.grid[..., 1], rows * columns)

    def image(self, x: Float[Array, "B T PPC"], side: int) -> Float[Array, "B H W C"]:
        """Images of patches of so many rows and columns of pixels, 0 where there is no patch."""
        rows, columns = self.size

        def laid(x, places):
            empty = jnp.zeros((rows * columns, x.shape[-1]), x.dtype)
            return empty.at[places].set(x, mode="drop")

        blocks = jax.vmap(laid)(x, self._places).reshape(len(x), rows, columns, side, side, -1)
        image = blocks.swapaxes(2, 3).reshape(len(x), rows * side, columns * side, -1)
        return constrain(image, "batch")

    def patches(self, x: Float[Array, "B h w D"]) -> Float[Array, "B T D"]:
        """The vectors of patches from images with one of each; 0 where there is no patch."""
        flat = x.reshape(len(x), -1, x.shape[-1])
        return jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0.0))(flat, self._places)


class Stem(NamedTuple):
    """One row.

    Attributes:
      module: (config, name=) -> the module, called with patches of numbers (0 where there is none),
        their grid, and whether there is a patch.
      whole: whether it looks beyond a patch, so that a row has one image, and all of it.
      reads: keys of `config.model` that it reads and not every other one does.
    """

    module: Any
    whole: bool = False
    reads: tuple[str, ...] = ()


def _resnet(bottleneck: bool) -> Stem:
    module = functools.partial(ResNetStem, bottleneck=bottleneck)
    return Stem(module, whole=True, reads=("resnet_depths", "resnet_width"))


STEMS = {
    "patches": Stem(LinearStem),
    "conv": Stem(ConvStem, whole=True),
    "resnet": _resnet(bottleneck=True),  # ResNet-50 and larger ones
    "resnet_basic": _resnet(bottleneck=False),  # ResNet-18 and 34
}
