"""What stands on a stack: logits of tokens or of labels, and vectors of whole texts."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import RoleName, parameter, times
from transformer_jax.models.layers.product import product

# The projection to the logits of tokens, by a token table or a kernel of its own.
Project = Callable[[Float[Array, "B T D"]], Unprojected]


class MaskedTokenHead(nn.Module):
    """Norm(gelu(x W + b)), then logits by `project`, with a bias a token.

    The head of BERT (Devlin et al. 2019, section 3.1 and its code), where `project` is the product
    with the token table. It drops nothing.

    Attributes:
      multiplier: on W.
    """

    size: int
    dtype: jnp.dtype
    norm: str
    dropout_rate: float
    norm_epsilon: float = 1e-5
    multiplier: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], project: Project, *, deterministic: bool
    ) -> Unprojected:
        size, axis = x.shape[-1], "embed_out"
        kernel, transform_bias = _affine(self, "transform", x.shape[-1], size, axis, "hidden")
        kernel = times(self.multiplier, kernel)
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        x = product("BTD,DE->BTE", x, kernel, jnp.float32)
        x = x + transform_bias[None, None]
        x = Norm(self.norm, self.norm_epsilon, name="norm")(jax.nn.gelu(x, approximate=False))
        zeros, size = nn.initializers.zeros, (self.size,)
        bias = parameter(self, "logits_bias", zeros, size, ("vocab",), role="vector")
        return project(x)._replace(bias=bias)


class LabelHead(nn.Module):
    """Logits of the labels, C of them, at every token: x W + b after dropout.

    Attributes:
      multiplier: on W.
    """

    size: int
    dtype: jnp.dtype
    norm: str
    dropout_rate: float
    norm_epsilon: float = 1e-5
    multiplier: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], project: Project, *, deterministic: bool
    ) -> Unprojected:
        x = Dropout(self.dropout_rate, name="dropout")(x, deterministic=deterministic)
        kernel, bias = _affine(self, "labels", x.shape[-1], self.size, "labels", "output")
        return Unprojected(times(self.multiplier, x).astype(self.dtype), kernel.T, bias)


class Head(NamedTuple):
    """One row.

    Attributes:
      stack: the kind of stack that it stands on.
      module: (size, dtype, norm, dropout rate, norm's epsilon) -> an encoder's head, called as (x,
        project, deterministic). A decoder has `project` alone.
      name: the module's, and so its parameters'.
      labels: whether its outputs are labels, and not the tokens of the vocabulary. Then its matrix
        is the model's output, otherwise one more hidden matrix.
      pooled: whether it reads, at each token, what stands for the whole text.
    """

    stack: Literal["encoder", "decoder"]
    module: Any = None
    name: str | None = None
    labels: bool = False
    pooled: bool = False


HEADS = {
    "tokens": Head("decoder"),
    "masked_tokens": Head("encoder", MaskedTokenHead, "token_head"),
    "classes": Head("encoder", LabelHead, "label_head", labels=True, pooled=True),
    "tags": Head("encoder", LabelHead, "label_head", labels=True),
}


def _affine(
    module: nn.Module, name: str, width: int, size: int, axis: str, role: RoleName
) -> tuple[Float[Array, "D E"], Float[Array, "E"]]:
    """The parameters W and b of x W + b."""
    init = nn.initializers.xavier_uniform()
    axes, zeros = ("embed", axis), nn.initializers.zeros
    kernel = parameter(module, name, init, (width, size), axes, matrix=(1, 1), role=role)
    return kernel, parameter(module, f"{name}_bias", zeros, (size,), (axis,), role="vector")


def _mean(x, mask, positions):
    weights = mask / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.einsum("BTS,BSD->BTD", weights, x)


def _first(x, mask, positions):
    first = jnp.arange(x.shape[1])[None] - positions
    return jnp.take_along_axis(x, first[..., None], axis=1)


# What stands for a whole text: the mean over its tokens, or the first one.
POOLINGS = {"mean": _mean, "first": _first}


def pool(
    x: Float[Array, "B T D"],
    mask: Bool[Array, "B T T"],
    positions: Int[Array, "B T"],
    pooling: str,
) -> Float[Array, "B T D"]:
    """At each token, what stands for its whole text.

    Args:
      mask: True for pairs of tokens of the same text.
      positions: of each token in its text, from 0.
      pooling: a key of `POOLINGS`.
    """
    return POOLINGS[pooling](x, mask, positions)
