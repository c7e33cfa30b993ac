"""The position-wise network: two matrices, or three where the activation is gated."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.transformer.config import TransformerConfig

_ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "swiglu": jax.nn.silu,
}


class FeedForward(nn.Module):
    """act(x W_up) W_down (Vaswani et al. 2017, equation 2), with act the ReLU or the exact GELU.

    SwiGLU is (silu(x W_gate) * x W_up) W_down (Shazeer 2020, equation 6). Every matrix has a bias;
    kernels are Xavier uniform.

    Attributes:
      inner_norm: a norm over the hidden layer, before W_down.
    """

    config: TransformerConfig
    inner_norm: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, deterministic: bool) -> Float[Array, "B T D"]:
        config = self.config
        dtype = config.compute_dtype

        def project(x, name, axes, size, out_dtype):
            kernel = parameter(self, name, nn.initializers.xavier_uniform(), size, axes)
            bias = parameter(self, f"{name}_bias", nn.initializers.zeros, size[1:], axes[1:])
            y = jnp.matmul(x, kernel.astype(dtype), preferred_element_type=out_dtype)
            return y + bias.astype(out_dtype)[None, None]

        def inward(name):
            size = (config.d_model, config.d_ff)
            return project(x.astype(dtype), name, ("embed", "mlp"), size, dtype)

        activation = _ACTIVATIONS[config.activation]
        up = inward("up")
        hidden = (
            activation(inward("gate")) * up if config.activation == "swiglu" else activation(up)
        )
        hidden = constrain(hidden, "batch", "length", "mlp")
        if self.inner_norm:
            hidden = Norm(config, axis="mlp", name="inner_norm")(hidden).astype(dtype)
        dropout = Dropout(config.feed_forward_dropout_rate, name="dropout")
        hidden = dropout(hidden, deterministic=deterministic)
        size = (config.d_ff, config.d_model)
        return project(hidden, "down", ("mlp", "embed"), size, jnp.float32)
