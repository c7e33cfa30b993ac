"""What stands on a stack: logits of tokens or of labels, and vectors of whole texts."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.embeddings import Unprojected, scaled
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import RoleName, parameter, times
from transformer_jax.models.layers.product import product

# The projection to the logits of tokens, by a token table or a kernel of its own.
Project = Callable[[Float[Array, "B T D"]], Unprojected]


class MaskedTokenHead(nn.Module):
    """Norm(gelu(x W + b)), then logits by `project`, with a bias a token.

    The head of BERT (Devlin et al. 2019, section 3.1 and its code), where `project` is the product
    with the token table. It drops nothing.
    """

    config: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], project: Project, *, deterministic: bool
    ) -> Unprojected:
        config, x = self.config, _transformed(self, x)
        norm = Norm(config.norm, config.norm_epsilon, name="norm")
        x = norm(jax.nn.gelu(x, approximate=False))
        zeros, size = nn.initializers.zeros, (config.vocab_size,)
        bias = parameter(self, "logits_bias", zeros, size, ("vocab",), role="vector")
        return project(x)._replace(bias=bias)


class LabelHead(nn.Module):
    """Logits of the labels, C of them, at every token: x W + b after dropout.

    Behind BERT's pooler, another tanh(x W + b), where classes are pooled by "pooler".
    """

    config: Any

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], project: Project, *, deterministic: bool
    ) -> Unprojected:
        config = self.config
        if config.head == "classes" and config.pooling == "pooler":
            x = jnp.tanh(_transformed(self, x))
        x = Dropout(config.dropout_rate, name="dropout")(x, deterministic=deterministic)
        kernel, bias = _affine(self, "labels", x.shape[-1], config.num_labels, "labels", "output")
        return Unprojected(scaled(config, x), kernel.T, bias)


class Head(NamedTuple):
    """One row.

    Attributes:
      stack: the kind of stack that it stands on.
      module: config -> an encoder's head, called as (x, project, deterministic). A decoder has
        `project` alone.
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


def _transformed(module: nn.Module, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """x W + b in float32, by one more hidden matrix."""
    config, width = module.config, x.shape[-1]
    kernel, shift = _affine(module, "transform", width, width, "embed_out", "hidden")
    kernel = times(config.multipliers.hidden, kernel)
    x, kernel = x.astype(config.compute_dtype), kernel.astype(config.compute_dtype)
    return product("BTD,DE->BTE", x, kernel, jnp.float32) + shift[None, None]


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


# What stands for a whole text, at each of its tokens: the mean over its tokens, or the first one,
# which "pooler" lets a classifier see through one more layer.
# (vectors (B, T, D), True for pairs of tokens of one text (B, T, T), positions (B, T)) -> (B, T, D)
POOLINGS = {"mean": _mean, "first": _first, "pooler": _first}
