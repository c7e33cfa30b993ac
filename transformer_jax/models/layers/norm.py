"""The norms, in float32."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.parameter import parameter


class NormKind(NamedTuple):
    """centred: whether the mean is subtracted first.

    scale, bias: whether a vector is multiplied at last, and one added.
    """

    centred: bool
    scale: bool = True
    bias: bool = False


NORMS = {
    "layer_norm": NormKind(centred=True, bias=True),  # Ba et al. 2016
    "rms_norm": NormKind(centred=False),  # Zhang and Sennrich 2019
    "layer_norm_unbiased": NormKind(centred=True),  # of ModernBERT
    "layer_norm_plain": NormKind(centred=True, scale=False),  # of OLMo (2402.00838), section 2.1
}


class Norm(nn.Module):
    """A norm over the last axis, float32.

    Attributes:
      kind: a key of `NORMS`.
      epsilon: what is added to the mean square.
      axis: the logical name of the last axis.
      bias: False leaves the bias out.
    """

    kind: str
    epsilon: float
    axis: str = "embed"
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        role = "head_vector" if self.axis == "head_dim" else "vector"

        def broadcast(name, init):
            vector = parameter(self, name, init, x.shape[-1:], (self.axis,), role=role)
            return jnp.expand_dims(vector, range(x.ndim - 1))

        x, row = x.astype(jnp.float32), NORMS[self.kind]
        scale = broadcast("scale", nn.initializers.ones) if row.scale else None
        if row.centred:
            # Centred first: E[x^2] - E[x]^2 cancels where the mean is large (deep Pre-LN).
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        x = x if scale is None else x * scale
        return x + broadcast("bias", nn.initializers.zeros) if row.bias and self.bias else x
