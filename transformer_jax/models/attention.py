"""Multi-head attention, self and cross, from projections of our own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.dropout import Dropout
from transformer_jax.models.parameter import parameter
from transformer_jax.models.rotary import Rotation, rotate

# Finite, so that a row that sees nothing (padding) gives numbers and not NaN.
_MASKED = -1e30

_INWARD = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 0, (1, 2))
_OUTWARD = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", (0, 1), 2)


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(K)) V (Vaswani et al. 2017, equation 1), H heads at once.

    Keys and values are made by `keys_values`, so that self-attention, cross-attention and cached
    decoding are one path. Kernels are Xavier uniform over the true (D, H K) matrices. Keys have no
    bias: the softmax cancels it.
    """

    config: TransformerConfig

    def setup(self):
        config = self.config
        size = (config.d_model, config.num_heads, config.head_dim)
        axes = ("embed", "heads", "head_dim")
        zeros = nn.initializers.zeros
        self.query = parameter(self, "query", _INWARD, size, axes)
        self.query_bias = parameter(self, "query_bias", zeros, size[1:], axes[1:])
        self.key = parameter(self, "key", _INWARD, size, axes)
        self.value = parameter(self, "value", _INWARD, size, axes)
        self.value_bias = parameter(self, "value_bias", zeros, size[1:], axes[1:])
        self.output = parameter(
            *(self, "output", _OUTWARD, (*size[1:], size[0]), (*axes[1:], axes[0]))
        )
        self.output_bias = parameter(self, "output_bias", zeros, size[:1], axes[:1])
        self.dropout = Dropout(config.attention_dropout_rate)

    def keys_values(
        self, x: Float[Array, "B S D"], rotation: Rotation | None = None
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H K"]]:
        """What queries will look at, in the compute dtype; keys are turned by their positions."""
        dtype = self.config.compute_dtype
        x = x.astype(dtype)
        keys = rotate(jnp.einsum("BSD,DHK->BSHK", x, self.key.astype(dtype)), rotation)
        values = jnp.einsum("BSD,DHK->BSHK", x, self.value.astype(dtype))
        return keys, values + self.value_bias.astype(dtype)[None, None]

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H K"],
        mask: Bool[Array, "#B #T S"],
        rotation: Rotation | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        """Attends from x; mask is True where a query sees a key. Softmax in float32.

        rotation: of the queries, where positions are rotary.
        """
        dtype = self.config.compute_dtype
        queries = jnp.einsum("BTD,DHK->BTHK", x.astype(dtype), self.query.astype(dtype))
        queries = rotate(queries + self.query_bias.astype(dtype)[None, None], rotation)
        queries = queries * keys.shape[-1] ** -0.5
        logits = jnp.einsum("BTHK,BSHK->BHTS", queries, keys, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(mask[:, None], logits, _MASKED))
        weights = self.dropout(weights, deterministic=deterministic).astype(dtype)
        heads = jnp.einsum("BHTS,BSHK->BTHK", weights, values)
        out = jnp.einsum(
            *("BTHK,HKD->BTD", heads, self.output.astype(dtype)),
            preferred_element_type=jnp.float32,
        )
        return out + self.output_bias[None, None]
