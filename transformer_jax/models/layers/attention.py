"""Multi-head attention, self and cross, from projections of our own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.kernels.splash import splash_attention
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.layers.positions import Rotation, rotate
from transformer_jax.models.transformer.config import TransformerConfig

# Finite, so that a row that sees nothing (padding) gives numbers and not NaN.
_MASKED = -1e30

_OUTWARD = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", (0, 1), 2)


class AdditiveScore(nn.Module):
    """v tanh(q + k) of each query and key (Bahdanau et al. 2014, 1409.0473, appendix A.1.2)."""

    @nn.compact
    def __call__(
        self, queries: Float[Array, "B T H K"], keys: Float[Array, "B S H K"]
    ) -> Float[Array, "B H T S"]:
        # Drawn as a kernel of K inputs and one output is.
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", 1, (), 0)
        vector = parameter(self, "vector", init, keys.shape[-2:], ("heads", "head_dim"))
        sums = jnp.tanh(queries[:, :, None] + keys[:, None])
        vector = vector.astype(sums.dtype)
        return jnp.einsum("BTSHK,HK->BHTS", sums, vector, preferred_element_type=jnp.float32)


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(K)) V (Vaswani et al. 2017, equation 1), H heads at once.

    Keys and values are made by `keys_values`, so that self-attention, cross-attention and cached
    decoding are one path. Kernels are Xavier uniform over the true (D, H K) matrices, those inward
    times `config.attention_gain`. Keys have no bias: the softmax cancels it. With `config.qk_norm`
    each head's queries and keys are normalised before they meet (Dehghani et al. 2023, 2302.05442,
    section 2).

    Attributes:
      inner_norm: a norm over the heads' outputs, before they are projected.
    """

    config: TransformerConfig
    inner_norm: bool = False

    def setup(self):
        config = self.config
        size = (config.d_model, config.num_heads, config.head_dim)
        axes = ("embed", "heads", "head_dim")
        variance = config.attention_gain**2
        inward = nn.initializers.variance_scaling(variance, "fan_avg", "uniform", 0, (1, 2))
        zeros = nn.initializers.zeros
        self.query = parameter(self, "query", inward, size, axes)
        self.query_bias = parameter(self, "query_bias", zeros, size[1:], axes[1:])
        self.key = parameter(self, "key", inward, size, axes)
        self.value = parameter(self, "value", inward, size, axes)
        self.value_bias = parameter(self, "value_bias", zeros, size[1:], axes[1:])
        self.output = parameter(
            *(self, "output", _OUTWARD, (*size[1:], size[0]), (*axes[1:], axes[0]))
        )
        self.output_bias = parameter(self, "output_bias", zeros, size[:1], axes[:1])
        self.dropout = Dropout(config.attention_dropout_rate)
        if config.attention_score == "additive":
            self.score = AdditiveScore()
        if config.qk_norm:
            self.query_norm = Norm(config, axis="head_dim", bias=False)
            self.key_norm = Norm(config, axis="head_dim", bias=False)
        if self.inner_norm:
            self.norm_of_heads = Norm(config, axis="heads", name="inner_norm")

    def keys_values(
        self, x: Float[Array, "B S D"], rotation: Rotation | None = None
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H K"]]:
        """What queries will look at, in the compute dtype; keys are turned by their positions."""
        dtype = self.config.compute_dtype
        x = x.astype(dtype)
        keys = jnp.einsum("BSD,DHK->BSHK", x, self.key.astype(dtype))
        if self.config.qk_norm:
            keys = self.key_norm(keys).astype(dtype)
        keys = rotate(keys, rotation)
        values = jnp.einsum("BSD,DHK->BSHK", x, self.value.astype(dtype))
        values = values + self.value_bias.astype(dtype)[None, None]
        # Whole rows, since every query may look at every key.
        return constrain(keys, "batch", None, "heads"), constrain(values, "batch", None, "heads")

    def __call__(
        self,
        x: Float[Array, "B T D"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H K"],
        mask: Bool[Array, "#B #T S"] | Segments,
        rotation: Rotation | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        """Attends from x. Softmax in float32.

        Args:
          mask: True where a query sees a key; or the segments that this follows from, for splash
            attention, which shows nothing to diagnostics.
          rotation: of the queries, where positions are rotary.
        """
        dtype = self.config.compute_dtype
        queries = jnp.einsum("BTD,DHK->BTHK", x.astype(dtype), self.query.astype(dtype))
        queries = queries + self.query_bias.astype(dtype)[None, None]
        if self.config.qk_norm:
            queries = self.query_norm(queries).astype(dtype)
        queries = constrain(rotate(queries, rotation), "batch", "length", "heads")
        if self.config.attention_score == "scaled_dot_product":
            queries = queries * keys.shape[-1] ** -0.5
        if isinstance(mask, Segments):
            heads = splash_attention(queries, keys, values, mask)
        else:
            heads = self._attend(queries, keys, values, mask, deterministic)
        heads = constrain(heads, "batch", "length", "heads")
        if self.inner_norm:
            flat = self.norm_of_heads(heads.reshape(*heads.shape[:2], -1))
            heads = flat.astype(dtype).reshape(heads.shape)
        out = jnp.einsum(
            *("BTHK,HKD->BTD", heads, self.output.astype(dtype)),
            preferred_element_type=jnp.float32,
        )
        return out + self.output_bias[None, None]

    def _attend(
        self,
        queries: Float[Array, "B T H K"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H K"],
        mask: Bool[Array, "#B #T S"],
        deterministic: bool,
    ) -> Float[Array, "B T H K"]:
        logits = jnp.where(mask[:, None], self._scores(queries, keys), _MASKED)
        weights = jax.nn.softmax(logits)
        self._observe(logits, weights)
        weights = self.dropout(weights, deterministic=deterministic).astype(values.dtype)
        return jnp.einsum("BHTS,BSHK->BTHK", weights, values)

    def _scores(
        self, queries: Float[Array, "B T H K"], keys: Float[Array, "B S H K"]
    ) -> Float[Array, "B H T S"]:
        if self.config.attention_score == "additive":
            return self.score(queries, keys)
        return jnp.einsum("BTHK,BSHK->BHTS", queries, keys, preferred_element_type=jnp.float32)

    def _observe(self, logits: Float[Array, "B H T S"], weights: Float[Array, "B H T S"]) -> None:
        """What diagnostics may ask for, each query's; nobody pays for it otherwise."""
        entropy = jnp.sum(jax.scipy.special.entr(weights), axis=-1)
        observe(self, entropy=entropy, largest_logit=jnp.max(logits, axis=-1))
