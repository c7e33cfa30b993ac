"""Decoding token by token: what is kept of prompts and layers, and one step through a decoder."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.models.layers.attention import Slots
from transformer_jax.models.transformer.blocks import Block, Step
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.residual import Carry

# The parameters of one layer
Layer = PyTree[Float[Array, "..."]]


class Cache(NamedTuple):
    """The keys and values of each layer, in slots."""

    layers: tuple[Slots, ...]

    @classmethod
    def empty(cls, config: TransformerConfig, rows: int, length: int) -> "Cache":
        def zeros(*size: int) -> Array:
            return jnp.zeros((rows, config.kv_heads, *size), config.compute_dtype)

        def layer() -> Slots:
            return Slots(zeros(config.head_dim, length), zeros(length, config.head_dim))

        return cls(tuple(layer() for _ in range(config.num_decoder_layers)))

    @property
    def length(self) -> int:
        return self.layers[0].keys.shape[3]

    def enlarged(self, by: int) -> "Cache":
        """With so many slots more."""

        def larger(layer: Slots) -> Slots:
            keys = jnp.pad(layer.keys, [(0, 0), (0, 0), (0, 0), (0, by)])
            return Slots(keys, jnp.pad(layer.values, [(0, 0), (0, 0), (0, by), (0, 0)]))

        return Cache(tuple(map(larger, self.layers)))


class Source(NamedTuple):
    """What decoding keeps of each sentence: the decoder's view of the encoder's output."""

    layers: tuple[Layer, ...]
    keys_values: tuple[Slots, ...]
    mask: Bool[Array, "B S"]


class Prompt(NamedTuple):
    """What decoding keeps of each prompt: prompts end side by side, with padding in front."""

    layers: tuple[Layer, ...]
    padding: Int[Array, "B"]
    width: Int[Array, ""]


def layers_of(config: TransformerConfig, stacked: Layer) -> tuple[Layer, ...]:
    """The parameters of each layer of the decoder, apart, and matrices in the compute dtype.

    A scan over depth would copy each layer's cache out of one array and back into it at each step;
    and what a step takes out of stacked parameters would be taken out again at each step.
    """

    def own(leaf: Array, number: int) -> Array:
        # Vectors (two axes with that of the layers) may be read in float32, which products are not.
        return leaf[number].astype(config.compute_dtype) if leaf.ndim > 2 else leaf[number]

    def layer(number: int) -> Layer:
        return jax.tree.map(lambda leaf: own(leaf, number), stacked)

    return tuple(layer(number) for number in range(config.num_decoder_layers))


def contexts(
    config: TransformerConfig, layers: Sequence[Layer], encoded: Float[Array, "B S D"]
) -> tuple[Slots, ...]:
    """Each layer's keys and values of the encoder's output."""
    return tuple(_method(config, layer, "context")(encoded) for layer in layers)


def step_through(
    config: TransformerConfig,
    layers: Sequence[Layer],
    start: tuple[Carry, Any],
    cache: Cache,
    sources: Sequence[Slots | None],
    step: Step,
) -> tuple[Carry, Cache]:
    """New tokens through all layers, each with its part of the cache and of the source."""
    carry, of_layers = start
    scales = of_layers.scales
    written = []
    for number, layer in enumerate(layers):
        own = jax.tree.map(lambda leaf, number=number: leaf[number], scales)
        advance = _method(config, layer, "step")
        carry, slots = advance(carry, own, cache.layers[number], sources[number], step)
        written.append(slots)
    return carry, Cache(tuple(written))


def _method(config: TransformerConfig, layer: Layer, name: str) -> Callable[..., Any]:
    block = Block(config, "decoder", parent=None)
    return lambda *arguments: block.apply({"params": layer}, *arguments, method=name)


def held(ancestors: Int[Array, "B J S"]) -> Bool[Array, "N J S"]:
    """Whether a row holds the slot of each hypothesis of its sentence."""
    rows = jnp.arange(ancestors.shape[1])[None, :, None, None]
    return (ancestors[:, None] == rows).reshape(-1, *ancestors.shape[1:])
