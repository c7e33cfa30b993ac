"""The norms, and what stands in for one, in float32."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.parameter import parameter


def _divided(x: Float[Array, "*B D"], epsilon: float) -> Float[Array, "*B D"]:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


class NormKind(NamedTuple):
    """One row.

    Attributes:
      centred: whether the mean is subtracted first.
      function: (x, epsilon, *scalars) -> x, of the same shape.
      scalars: the trained numbers that it takes, with what they start from. A function that has
        some looks at each entry alone: it divides by nothing, and reads no epsilon.
      scale, bias: whether a vector is multiplied at last, and one added.
    """

    centred: bool = False
    function: Callable[..., Any] = _divided
    scalars: tuple[tuple[str, float], ...] = ()
    scale: bool = True
    bias: bool = False


NORMS = {
    "layer_norm": NormKind(centred=True, bias=True),  # Ba et al. 2016
    "rms_norm": NormKind(),  # Zhang and Sennrich 2019
    "layer_norm_unbiased": NormKind(centred=True),  # of ModernBERT
    "layer_norm_plain": NormKind(centred=True, scale=False),  # of OLMo (2402.00838), section 2.1
    # Zhu et al. 2025 (2503.10622, DyT): tanh(alpha x), with one alpha a layer.
    "dyt": NormKind(
        function=lambda x, _, alpha: jnp.tanh(alpha * x), scalars=(("alpha", 0.5),), bias=True
    ),
    # Chen et al. 2025 (2512.10938): erf(alpha x + s), with one of each a layer.
    "derf": NormKind(
        function=lambda x, _, alpha, shift: jax.lax.erf(alpha * x + shift),
        scalars=(("alpha", 0.5), ("shift", 0.0)),
        bias=True,
    ),
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

        def scalar(name, start):
            # It sums up what the whole width says, as the gains of a head do.
            init = nn.initializers.constant(start)
            return parameter(self, name, init, (), (), role="head_vector")

        x, row = x.astype(jnp.float32), NORMS[self.kind]
        scale = broadcast("scale", nn.initializers.ones) if row.scale else None
        if row.centred:
            # Centred first: E[x^2] - E[x]^2 cancels where the mean is large (deep Pre-LN).
            x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = row.function(x, self.epsilon, *(scalar(*each) for each in row.scalars))
        x = x if scale is None else x * scale
        return x + broadcast("bias", nn.initializers.zeros) if row.bias and self.bias else x
