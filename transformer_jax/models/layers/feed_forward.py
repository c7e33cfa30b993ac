"""The position-wise network: two matrices, or three where the activation is gated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.models.layers.product import product
from transformer_jax.models.layers.stack import keep


def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x times the standard normal's distribution function (Hendrycks and Gimpel 2016, section 2).

    By erf in float32, as PyTorch has it: `jax.nn.gelu` takes erfc, by which a small model's step
    took a twelfth longer on a CPU. Far below 0 the two differ by a rounding of x.
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


class Activation(NamedTuple):
    """gated: whether the function takes a projection of its own, which multiplies x W_up."""

    function: Callable[[Float[Array, "B T F"]], Float[Array, "B T F"]]
    gated: bool = False


def _recomputed(function: Callable) -> Callable:
    """Of all that it computes, its input alone is kept; a scan keeps the two passes apart."""
    return jax.checkpoint(function, prevent_cse=False)


_gelu_tanh = _recomputed(lambda x: jax.nn.gelu(x, approximate=True))
_gelu = _recomputed(gelu)
_silu = _recomputed(jax.nn.silu)

ACTIVATIONS = {
    "relu": Activation(jax.nn.relu),  # keeps a sign, a quarter of its input
    "gelu": Activation(_gelu),
    "gelu_tanh": Activation(_gelu_tanh),  # of GPT-2
    "quick_gelu": Activation(_recomputed(lambda x: x * jax.nn.sigmoid(1.702 * x))),  # of CLIP
    "relu2": Activation(_recomputed(lambda x: jnp.square(jax.nn.relu(x)))),  # So et al. 2021
    "swish": Activation(_silu),  # of Marian
    "swiglu": Activation(_silu, gated=True),  # Shazeer 2020, equation 6, as the next two
    "geglu": Activation(_gelu, gated=True),
    "reglu": Activation(jax.nn.relu, gated=True),
    "geglu_tanh": Activation(_gelu_tanh, gated=True),  # of T5 1.1
}


class FeedForward(nn.Module):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2), or (act(x W_gate) * x W_up) W_down.

    Kernels are Xavier uniform.

    Attributes:
      config: a `TransformerConfig`.
      inner_norm: the hidden layer is normalised before W_down.
      product: as of `Attention`.
    """

    config: Any
    inner_norm: bool = False
    product: Callable[..., Any] = product

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, deterministic: bool) -> Float[Array, "B T D"]:
        config, d_model, init = self.config, x.shape[-1], nn.initializers.xavier_uniform()
        d_ff, compute_dtype = config.d_ff, config.compute_dtype

        def project(x, name, axes, size, dtype):
            kernel = parameter(self, name, init, size, axes, matrix=(1, 1), role="hidden")
            kernel = times(config.multipliers.hidden, kernel)
            y = self.product("BTI,IO->BTO", x, kernel.astype(compute_dtype), dtype)
            if not config.bias:
                return y
            zeros = nn.initializers.zeros
            bias = parameter(self, f"{name}_bias", zeros, size[1:], axes[1:], role="vector")
            return y + bias.astype(dtype)[None, None]

        def inward(name):
            axes, size = ("embed", "mlp"), (d_model, d_ff)
            return keep(project(x.astype(compute_dtype), name, axes, size, compute_dtype), name)

        function, gated = ACTIVATIONS[config.activation]
        up = inward("up")
        hidden = function(inward("gate")) * up if gated else function(up)
        hidden = constrain(hidden, "batch", "length", "mlp")
        if self.inner_norm:
            norm = Norm(config.norm, config.norm_epsilon, axis="mlp", name="inner_norm")
            hidden = norm(hidden).astype(compute_dtype)
        dropout = Dropout(config.feed_forward_dropout_rate, name="dropout")
        hidden = dropout(hidden, deterministic=deterministic)
        return project(hidden, "down", ("mlp", "embed"), (d_ff, d_model), jnp.float32)
