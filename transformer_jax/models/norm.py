"""The norms, in float32."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.parameter import parameter


class Norm(nn.Module):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over D, in float32."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        size, axes = x.shape[-1:], ("embed",)
        scale = parameter(self, "scale", nn.initializers.ones, size, axes)
        centre = self.config.norm == "layer_norm"
        if centre:
            # Centred first: E[x^2] - E[x]^2 cancels where the mean is large (deep Pre-LN).
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5)
        x = x * scale[None, None]
        if centre:
            x = x + parameter(self, "bias", nn.initializers.zeros, size, axes)[None, None]
        return x
