"""What stands on an encoder alone: logits of masked tokens or of labels, and vectors of texts."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.transformer.config import Pooling, TransformerConfig


class MaskedTokenHead(nn.Module):
    """Norm(gelu(x W + b)), then logits by `project`, with a bias a token.

    The head of BERT (Devlin et al. 2019, section 3.1 and its code), where `project` is the product
    with the token table.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        project: Callable[[Float[Array, "B T D"]], Float[Array, "B T V"]],
    ) -> Float[Array, "B T V"]:
        d_model, vocab_size = self.config.d_model, self.config.vocab_size
        zeros = nn.initializers.zeros
        x = _affine(self, "transform", x, d_model, "embed_out", self.config.compute_dtype)
        x = Norm(self.config, name="norm")(jax.nn.gelu(x, approximate=False))
        bias = parameter(self, "logits_bias", zeros, (vocab_size,), ("vocab",))
        return project(x) + bias[None, None]


class LabelHead(nn.Module):
    """Logits of the labels, C of them, at every token: x W + b after dropout."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, deterministic: bool) -> Float[Array, "B T C"]:
        config = self.config
        x = Dropout(config.dropout_rate, name="dropout")(x, deterministic=deterministic)
        return _affine(self, "labels", x, config.num_labels, "labels", config.compute_dtype)


def _affine(
    module: nn.Module, name: str, x: Float[Array, "B T D"], size: int, axis: str, dtype: jnp.dtype
) -> Float[Array, "B T E"]:
    init, shape = nn.initializers.xavier_uniform(), (x.shape[-1], size)
    kernel = parameter(module, name, init, shape, ("embed", axis))
    bias = parameter(module, f"{name}_bias", nn.initializers.zeros, (size,), (axis,))
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    y = jnp.einsum("BTD,DE->BTE", x, kernel, preferred_element_type=jnp.float32)
    return y + bias[None, None]


def pool(
    x: Float[Array, "B T D"],
    mask: Bool[Array, "B T T"],
    positions: Int[Array, "B T"],
    pooling: Pooling,
) -> Float[Array, "B T D"]:
    """At each token, what stands for its whole text: the mean over its tokens, or the first one.

    Args:
      mask: of pairs of tokens of the same text.
      positions: of each token in its text, from 0.
    """
    if pooling == "first":
        first = jnp.arange(x.shape[1])[None] - positions
        return jnp.take_along_axis(x, first[..., None], axis=1)
    weights = mask / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.einsum("BTS,BSD->BTD", weights, x)
