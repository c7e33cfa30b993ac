"""The norms, in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.transformer.config import TransformerConfig

EPSILON = 1e-5  # what is added to the mean square


class Norm(nn.Module):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last axis, float32.

    Attributes:
      axis: the logical name of the last axis.
      bias: False leaves the bias of LayerNorm out.
    """

    config: TransformerConfig
    axis: str = "embed"
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        def broadcast(name, init):
            vector = parameter(self, name, init, x.shape[-1:], (self.axis,))
            return jnp.expand_dims(vector, range(x.ndim - 1))

        x = x.astype(jnp.float32)
        scale = broadcast("scale", nn.initializers.ones)
        centre = self.config.norm == "layer_norm"
        if centre:
            # Centred first: E[x^2] - E[x]^2 cancels where the mean is large (deep Pre-LN).
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + EPSILON)
        x = x * scale
        return x + broadcast("bias", nn.initializers.zeros) if centre and self.bias else x
