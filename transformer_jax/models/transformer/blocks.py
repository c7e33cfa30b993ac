"""Blocks of residual sublayers, and stacks of blocks: one scan each.

A block takes (carry, layer, shared): the carry runs through the depth, `layer` is this layer's
slice of stacked arrays (the scheme's scales, a cache), and `shared` is the same for every layer.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.attention import Attention
from transformer_jax.models.layers.feed_forward import FeedForward
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.positions import Rotation
from transformer_jax.models.transformer.config import Remat, TransformerConfig
from transformer_jax.models.transformer.residual import Carry, ResidualSublayer, Scales
from transformer_jax.models.transformer.schemes import Stack, scheme

_dots = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
# What of each layer is kept for the backward pass; the rest is computed again.
_KEPT = {"dots": _dots, "full": jax.checkpoint_policies.nothing_saveable}


class KeysValues(NamedTuple):
    """Keys and values of one layer, or of all with a leading axis L."""

    keys: Float[Array, "*L B S H K"]
    values: Float[Array, "*L B S H K"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["mask", "rotation", "real", "encoded", "cross_mask"],
    meta_fields=["deterministic"],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """What all layers see of whole rows: which keys their queries see, positions, real tokens.

    encoded, cross_mask: the encoder's output (B, S, D) and which of its tokens a query sees
    (B, T, S), for a decoder that has an encoder.
    """

    mask: Bool[Array, "#B T T"] | Segments
    rotation: Rotation | None
    real: Bool[Array, "B T"]
    deterministic: bool
    encoded: Any = None
    cross_mask: Any = None


class Step(NamedTuple):
    """Where new tokens stand: their slot in the cache, the slots they see, and their rotation."""

    slot: Int[Array, ""]
    seen: Bool[Array, "#N T S"]
    rotation: Rotation | None


class Block(nn.Module):
    """Self-attention and feed-forward, each in its residual sublayer."""

    config: TransformerConfig
    stack: Stack

    def setup(self):
        config, stack = self.config, self.stack
        inner_norm = scheme(config, stack).inner_norm
        self.self_attention = Attention(config, inner_norm)
        self.self_attention_residual = ResidualSublayer(config, stack, 0)
        self.feed_forward = FeedForward(config, inner_norm)
        self.feed_forward_residual = ResidualSublayer(config, stack, 1)

    def __call__(self, carry: Carry, layer: Scales, shared: Rows) -> tuple[Carry, None]:
        """All positions at once."""
        attend = functools.partial(_attend, self.self_attention, shared)
        return self._sublayers(carry, layer, attend, shared.real, shared.deterministic), None

    def step(
        self, carry: Carry, layer: tuple[Scales, KeysValues], shared: Step
    ) -> tuple[Carry, KeysValues]:
        """New tokens, x (N, T, D): reads and extends the cache, whose new slice it returns."""
        scales, cache = layer

        def attend(h):
            nonlocal cache
            out, cache = _attend_cached(self.self_attention, h, cache, shared)
            return out

        real = jnp.ones(carry.x.shape[:2], bool)
        return self._sublayers(carry, scales, attend, real, True), cache

    def _sublayers(self, carry, scales, attend, real, deterministic) -> Carry:
        def feed_forward(h):
            return self.feed_forward(h, deterministic=deterministic)

        sublayers = (
            (self.self_attention_residual, attend),
            (self.feed_forward_residual, feed_forward),
        )
        for residual, f in sublayers:
            carry = residual(carry, scales, f, real, deterministic=deterministic)
        return carry


class CrossBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward, each in its residual sublayer."""

    config: TransformerConfig
    stack: Stack

    def setup(self):
        config, stack = self.config, self.stack
        inner_norm = scheme(config, stack).inner_norm
        self.self_attention = Attention(config, inner_norm)
        self.self_attention_residual = ResidualSublayer(config, stack, 0)
        self.cross_attention = Attention(config)
        self.cross_attention_residual = ResidualSublayer(config, stack, 1)
        self.feed_forward = FeedForward(config, inner_norm)
        self.feed_forward_residual = ResidualSublayer(config, stack, 2)

    def __call__(self, carry: Carry, layer: Scales, shared: Rows) -> tuple[Carry, None]:
        """All positions at once."""
        attend = functools.partial(_attend, self.self_attention, shared)
        real, deterministic = shared.real, shared.deterministic

        def look(h):
            keys_values = self.cross_attention.keys_values(shared.encoded)
            return self.cross_attention(
                *(h, *keys_values, shared.cross_mask), deterministic=deterministic
            )

        return self._sublayers(carry, layer, attend, look, real, deterministic), None

    def context(self, carry: Carry, layer: None, shared: tuple) -> tuple[Carry, KeysValues]:
        """This layer's keys and values of the encoder's output, made once for a translation."""
        (encoded,) = shared
        return carry, KeysValues(*self.cross_attention.keys_values(encoded))

    def step(
        self, carry: Carry, layer: tuple[Scales, KeysValues, KeysValues], shared: tuple
    ) -> tuple[Carry, KeysValues]:
        """One token, x (N, 1, D): reads and extends the cache, whose new slice it returns."""
        scales, source, cache = layer
        source_mask, step = shared

        def attend(h):
            nonlocal cache
            out, cache = _attend_cached(self.self_attention, h, cache, step)
            return out

        def look(h):
            # The hypotheses of one sentence stand as its queries, so its context is never tiled.
            queries = h.reshape(source_mask.shape[0], -1, h.shape[-1])
            mask = source_mask[:, None]
            out = self.cross_attention(queries, *source, mask, deterministic=True)
            return out.reshape(h.shape)

        real = jnp.ones(carry.x.shape[:2], bool)
        return self._sublayers(carry, scales, attend, look, real, True), cache

    def _sublayers(self, carry, scales, attend, look, real, deterministic) -> Carry:
        def feed_forward(h):
            return self.feed_forward(h, deterministic=deterministic)

        sublayers = (
            (self.self_attention_residual, attend),
            (self.cross_attention_residual, look),
            (self.feed_forward_residual, feed_forward),
        )
        for residual, f in sublayers:
            carry = residual(carry, scales, f, real, deterministic=deterministic)
        return carry


def _attend(attention: Attention, shared: Rows, h: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    keys_values = attention.keys_values(h, shared.rotation)
    return attention(
        *(h, *keys_values, shared.mask, shared.rotation), deterministic=shared.deterministic
    )


def _attend_cached(
    attention: Attention, h: Float[Array, "N T D"], cache: KeysValues, step: Step
) -> tuple[Float[Array, "N T D"], KeysValues]:
    new = KeysValues(*attention.keys_values(h, step.rotation))
    write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    cache = jax.tree.map(lambda old, new: write(old, new, step.slot), cache, new)
    cache = jax.tree.map(lambda rows: constrain(rows, "batch", None, "heads"), cache)
    out = attention(h, *cache, step.seen, step.rotation, deterministic=True)
    return out, cache


def stack(block: type[nn.Module], methods: list[str], num_layers: int, remat: Remat) -> Any:
    """The block repeated over depth, its parameters stacked on a leading axis `layers`.

    remat: what `__call__`'s backward pass computes again (Chen et al. 2016, section 4.1): "none",
    "dots" (all but the products with parameters) or "full".
    """
    if remat != "none":
        # A scan keeps forward and backward pass apart by itself.
        block = nn.remat(block, policy=_KEPT[remat], prevent_cse=False)
    return nn.scan(
        block,
        # The last two hold something only where a caller asks for it.
        variable_axes={"params": 0, "intermediates": 0, "perturbations": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] (Flax says int)
        out_axes=0,
        length=num_layers,
        methods=methods,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
