"""x W + b, and convolutions: functions of the module that their parameters are of."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.parameter import RoleName, parameter, times
from transformer_jax.models.layers.product import product

ZEROS = nn.initializers.zeros
XAVIER = nn.initializers.xavier_uniform()


def weights(
    module: Any,
    name: str,
    shape: tuple[int, int],
    axes: tuple[str, str],
    role: RoleName,
    init: nn.initializers.Initializer = XAVIER,
    bias_init: nn.initializers.Initializer = ZEROS,
) -> tuple[Float[Array, "D E"], Float[Array, "E"]]:
    """W, called `name`, and b, called `name`_bias; that of "kernel" is called "bias"."""
    by_inputs = init is not XAVIER
    kernel = parameter(
        module, name, init, shape, axes, matrix=(1, 1), role=role, by_inputs=by_inputs
    )
    name = f"{name}_bias".removeprefix("kernel_")
    return kernel, parameter(module, name, bias_init, shape[1:], axes[1:], role="vector")


def affine(
    module: Any,
    name: str,
    x: Float[Array, "*B D"],
    size: int,
    axes: tuple[str, str],
    role: RoleName,
    *draws: nn.initializers.Initializer,
) -> Float[Array, "*B E"]:
    """x W + b in float32, with W times the multiplier of its role.

    Args:
      axes: the logical names of D and E. size: E.
      draws: of W, Xavier's by default, and of b, zeros.
    """
    config = module.config
    kernel, bias = weights(module, name, (x.shape[-1], size), axes, role, *draws)
    kernel = times(_multiplier(config, role), kernel).astype(config.compute_dtype)
    rows = "ABCT"[: x.ndim - 1]
    y = product(f"{rows}D,DE->{rows}E", x.astype(config.compute_dtype), kernel, jnp.float32)
    return y + jnp.expand_dims(bias, range(x.ndim - 1))


def convolution(
    module: Any,
    name: str,
    x: Float[Array, "B H W C"],
    size: tuple[int, int],
    stride: int = 1,
    *,
    axis: str = "embed_out",
    bias: bool = False,
) -> Float[Array, "B h w E"]:
    """A convolution in float32, its kernel drawn from N(0, 2 / inputs) (He et al. 2015).

    size: E, and the side of the kernel, odd. axis: the logical name of C, "channels" where these
    are of pixels. bias: as of `weights`.
    """
    config, (channels, side) = module.config, size
    shape, axes = (side, side, x.shape[-1], channels), ("pixels", "pixels", axis, "embed")
    init = nn.initializers.he_normal()
    role: RoleName = "embedding" if axis == "channels" else "hidden"
    kernel = parameter(module, name, init, shape, axes, matrix=(3, 1), role=role, by_inputs=True)
    x = jax.lax.conv_general_dilated(
        x.astype(config.compute_dtype),
        times(_multiplier(config, role), kernel).astype(config.compute_dtype),
        window_strides=(stride, stride),
        padding=[(side // 2, side // 2)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = constrain(x.astype(jnp.float32), "batch")
    if bias:
        biases = parameter(module, f"{name}_bias", ZEROS, (channels,), ("embed",), role="vector")
        x = x + biases[None, None, None]
    return x


def _multiplier(config: Any, role: RoleName) -> float:
    """The parameterisation's; an embedding's is of what is looked up."""
    multipliers = {"hidden": config.multipliers.hidden, "output": config.multipliers.output}
    return multipliers.get(role, 1.0)
