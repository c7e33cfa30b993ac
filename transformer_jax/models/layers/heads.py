"""What stands on a stack: logits of tokens or of labels, boxes, and vectors of whole texts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.models.layers.affine import XAVIER, affine, weights
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.embeddings import Unprojected, scaled
from transformer_jax.models.layers.feed_forward import gelu
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import RoleName, parameter

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
        x = norm(gelu(x))
        zeros, size = nn.initializers.zeros, (config.vocab_size,)
        bias = parameter(self, "logits_bias", zeros, size, ("vocab",), role="vector")
        return dataclasses.replace(project(x), bias=bias)


class LabelHead(nn.Module):
    """Logits of the labels, C of them, at every token: x W + b after dropout.

    Behind one more layer, f(x W + b), where classes are pooled by a row that has an f.

    Attributes:
      kernel_init: what W is drawn from.
    """

    config: Any
    kernel_init: nn.initializers.Initializer = XAVIER

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], project: Project, *, deterministic: bool
    ) -> Unprojected:
        config = self.config
        activation = POOLINGS[config.pooling].activation
        if HEADS[config.head].pooled and activation is not None:
            x = activation(_transformed(self, x))
        x = Dropout(config.dropout_rate, name="dropout")(x, deterministic=deterministic)
        size = x.shape[-1], config.num_labels
        kernel, bias = weights(
            self, "labels", size, ("embed", "labels"), "output", self.kernel_init
        )
        return Unprojected(scaled(config, x), kernel.T, bias)


class Boxes(NamedTuple):
    """What each layer of a decoder says of each of N queries.

    Attributes:
      logits: of the classes, and at last of none of them.
      boxes: centre x and y, width and height, as shares of the image's sides.
    """

    logits: Float[Array, "L B N C+1"]
    boxes: Float[Array, "L B N 4"]


class BoxHead(nn.Module):
    """A class and a box for each query, by one matrix and by three with ReLU and a sigmoid.

    The heads of DETR (Carion et al. 2020, 2005.12872, section 3.2, and its code), drawn as PyTorch
    draws: kernels and biases from U(-n^-1/2, n^-1/2) for n inputs.
    """

    config: Any

    @nn.compact
    def __call__(self, x: Float[Array, "L B N D"]) -> Boxes:
        config, width = self.config, x.shape[-1]

        def layer(name: str, x: Array, size: int, axis: str, role: RoleName) -> Array:
            return affine(self, name, x, size, ("embed", axis), role, *[_uniform(width)] * 2)

        logits = layer("labels", x, config.num_labels + 1, "labels", "output")
        for name in ("first", "second"):
            x = jax.nn.relu(layer(name, x, width, "embed_out", "hidden"))
        return Boxes(logits, jax.nn.sigmoid(layer("boxes", x, 4, "coordinates", "output")))


class Head(NamedTuple):
    """One row.

    Attributes:
      module: config -> an encoder's head, called as (x, project, deterministic), or that of a set,
        called with what each layer leaves. Another decoder has `project` alone.
      name: the module's, and so its parameters'.
      labels: whether its outputs are labels, and not the tokens of the vocabulary. Then its matrix
        is the model's output, otherwise one more hidden matrix.
      pooled: whether it reads, at each token, what stands for the whole text.
    """

    module: Any = None
    name: str | None = None
    labels: bool = False
    pooled: bool = False


HEADS = {
    "tokens": Head(),
    "masked_tokens": Head(MaskedTokenHead, "token_head"),
    "classes": Head(LabelHead, "label_head", labels=True, pooled=True),
    # Starts at 0, as in Dosovitskiy et al. 2021's code.
    "image_classes": Head(
        functools.partial(LabelHead, kernel_init=nn.initializers.zeros),
        "label_head",
        labels=True,
        pooled=True,
    ),
    "tags": Head(LabelHead, "label_head", labels=True),
    "boxes": Head(BoxHead, "box_head", labels=True),
}


def _transformed(module: nn.Module, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """x W + b in float32, by one more hidden matrix."""
    return affine(module, "transform", x, x.shape[-1], ("embed", "embed_out"), "hidden")


def _uniform(inputs: int) -> nn.initializers.Initializer:
    """Draws from U(-n^-1/2, n^-1/2)."""
    bound = inputs**-0.5
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def _mean(x, mask, positions):
    weights = mask / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.einsum("BTS,BSD->BTD", weights, x)


def _first(x, mask, positions):
    first = jnp.arange(x.shape[1])[None] - positions
    return jnp.take_along_axis(x, first[..., None], axis=1)


class Pooling(NamedTuple):
    """What stands for a whole text, at each of its tokens. Of an image: over its patches alone.

    Attributes:
      vector: (vectors (B, T, D), True for pairs of tokens of one text, positions (B, T)) ->
        (B, T, D).
      activation: of one more layer, through which a classifier sees it; None: there is none.
    """

    vector: Callable[..., Float[Array, "B T D"]]
    activation: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]] | None = None


POOLINGS = {
    "mean": Pooling(_mean),
    "first": Pooling(_first),
    "pooler": Pooling(_first, jnp.tanh),  # of BERT
    "relu_pooler": Pooling(_first, jax.nn.relu),  # of DistilBERT
    "gelu_pooler": Pooling(_first, gelu),  # of ELECTRA
}
