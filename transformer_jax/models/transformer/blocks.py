"""The block of residual sublayers that every stack repeats, in whole rows and with a cache."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.attention import Attention, Offsets, Slots
from transformer_jax.models.layers.feed_forward import FeedForward
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.positions import POSITIONS, Rotation
from transformer_jax.models.layers.product import product
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme, tells_set
from transformer_jax.models.transformer.patterns import LayerPattern
from transformer_jax.models.transformer.residual import Carry, ResidualSublayer, Scales
from transformer_jax.models.transformer.schemes import Kind, Stack


@struct.dataclass
class WholeRows:
    """What all layers see of whole rows: which keys their queries see, positions, real tokens.

    mask, rotation: of self-attention; those of all kinds of layers where these differ.
    bias: of self-attention, where positions are relative.
    offsets: of self-attention, where positions are added there.
    encoded, cross_mask, cross_offsets: the encoder's output (B, S, D), which of its tokens a query
    sees (B, T, S), and the offsets of cross-attention, for a decoder that has an encoder.
    """

    mask: Bool[Array, "#B T T"] | Segments
    rotation: Rotation | None
    bias: Any
    offsets: Offsets | None
    real: Bool[Array, "B T"]
    encoded: Any
    cross_mask: Any
    cross_offsets: Offsets | None
    deterministic: bool = struct.field(pytree_node=False)

    def of_layer(self, pattern: LayerPattern) -> "WholeRows":
        """With the mask and the rotation of one layer."""
        mask: Any = self.mask
        if pattern.windowed is not None:
            mask = dataclasses.replace(mask, windowed=pattern.windowed)
        rotation = self.rotation
        if pattern.rotation is not None:
            rotation = jax.tree.map(lambda parts: parts[pattern.rotation], rotation)
        return dataclasses.replace(self, mask=mask, rotation=rotation)


class NewTokens(NamedTuple):
    """Where new tokens stand: their slot in the cache, the slots they see, and their rotation.

    bias: as of `WholeRows`. mask, hypotheses: as of `Attention.cached`. source_mask: which tokens
    of its source (B, S) a text sees, for a decoder that has an encoder.
    """

    slot: Int[Array, ""]
    mask: Bool[Array, "#N Q S"]
    rotation: Rotation | None
    bias: Any
    hypotheses: int
    source_mask: Any = None


class Block(nn.Module):
    """One layer of a stack: the sublayers of `depth(config, stack).kinds`, each in its residual.

    product: as of `Attention`.
    """

    config: TransformerConfig
    stack: Stack
    product: Callable[..., Any] = product

    def setup(self):
        config, stack = self.config, self.stack
        row = scheme(config, stack)
        for index, kind in enumerate(depth(config, stack).kinds):
            setattr(self, kind, _SUBLAYERS[kind](config, row, self.product))
            setattr(self, f"{kind}_residual", ResidualSublayer(config, stack, index))
        positions = POSITIONS[config.positions]
        if positions.bias and positions.by_layer and not tells_set(config, stack):
            self.self_attention_bias = positions.bias(config, stack == "decoder")

    def __call__(
        self, carry: Carry, layer: tuple[Scales, LayerPattern, Any], shared: WholeRows
    ) -> tuple[Carry, tuple[Any, Carry | None]]:
        """All positions at once, what the layer's memory becomes, and for a set what it leaves.

        layer: its own scales, what its self-attention differs in, and what this read of the tokens
        before these rows (B, M, D) or None, which ride through the scan.
        """
        scales, pattern, memory = layer
        shared, deterministic = shared.of_layer(pattern), shared.deterministic

        def attend(h):
            nonlocal memory
            source = h
            if memory is not None:
                # No gradient enters what earlier segments left.
                source = jnp.concatenate([jax.lax.stop_gradient(memory), h.astype(memory.dtype)], 1)
                memory = source[:, h.shape[1] :]
            keys = source.shape[1]
            return self.self_attention(
                h,
                source,
                shared.mask,
                shared.rotation,
                self._bias(shared.bias, h.shape[1], keys, keys - h.shape[1]),
                shared.offsets,
                deterministic=deterministic,
            )

        def look(h):
            return self.cross_attention(
                h,
                shared.encoded,
                shared.cross_mask,
                offsets=shared.cross_offsets,
                deterministic=deterministic,
            )

        carry = self._sublayers(carry, scales, attend, look, shared.real, deterministic)
        return carry, (memory, carry if tells_set(self.config, self.stack) else None)

    def context(self, encoded: Float[Array, "B S D"]) -> Slots:
        """This layer's keys and values of the encoder's output, made once for each sentence."""
        return self.cross_attention.slots(encoded)

    def step(
        self, carry: Carry, scales: Scales, cache: Slots, source: Slots | None, shared: NewTokens
    ) -> tuple[Carry, Slots]:
        """New tokens, x (N, T, D): reads and extends the cache of this layer.

        source: what `context` returned (None without an encoder).
        """

        def attend(h):
            nonlocal cache
            cache = cache.write(self.self_attention.slots(h, shared.rotation), shared.slot)
            bias = self._bias(shared.bias, h.shape[1], cache.keys.shape[3], shared.slot)
            return self.self_attention.cached(
                h, cache, shared.mask, shared.rotation, bias, hypotheses=shared.hypotheses
            )

        def look(h):
            # The hypotheses of one sentence stand as its queries, so its context is never tiled.
            queries = h.reshape(shared.source_mask.shape[0], -1, h.shape[-1])
            out = self.cross_attention.cached(queries, source, shared.source_mask[:, None])
            return out.reshape(h.shape)

        real = jnp.ones(carry.x.shape[:2], bool)
        return self._sublayers(carry, scales, attend, look, real, True), cache

    def _bias(self, shared: Any, *places: Any) -> Any:
        """What is added to the scores of self-attention: this layer's own, or that of all layers.

        places: as of `PositionKind.bias`.
        """
        bias = getattr(self, "self_attention_bias", None)
        return shared if bias is None else bias(*places)

    def _sublayers(
        self,
        carry: Carry,
        scales: Scales,
        attend: Callable[..., Any],
        look: Callable[..., Any],
        real: Bool[Array, "B T"],
        deterministic: bool,
    ) -> Carry:
        functions: dict[Kind, Callable[..., Any]] = {
            "self_attention": attend,
            "cross_attention": look,
            "feed_forward": functools.partial(self.feed_forward, deterministic=deterministic),
        }
        for kind in depth(self.config, self.stack).kinds:
            residual = getattr(self, f"{kind}_residual")
            carry = residual(carry, scales, functions[kind], real, deterministic=deterministic)
        return carry


_SUBLAYERS: dict[Kind, Callable[..., nn.Module]] = {
    "self_attention": lambda config, row, product: Attention(
        config,
        POSITIONS[config.positions].distances,
        row.inner_norm,
        product,
        config.attention_bias,
        row.qkv_norm,
    ),
    # Without an inner norm
    "cross_attention": lambda config, row, product: Attention(
        config, product=product, qkv_norm=row.qkv_norm
    ),
    "feed_forward": lambda config, row, product: FeedForward(config, row.inner_norm, product),
}
