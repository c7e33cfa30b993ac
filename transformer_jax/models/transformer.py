"""Blocks, stacks of blocks (one scan each), and the encoder-decoder made of them.

A block takes (carry, layer, shared): the carry runs through the depth, `layer` is this layer's
slice of stacked arrays (a cache), and `shared` is the same for every layer.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models import embeddings
from transformer_jax.models.attention import Attention
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.feed_forward import FeedForward
from transformer_jax.models.masks import causal_mask, segment_mask
from transformer_jax.models.residual import SCHEMES, Carry, Norm, ResidualSublayer

Batch = dict[str, Int[Array, "B _"]]


class KeysValues(NamedTuple):
    """Keys and values of one layer, or of all with a leading axis L."""

    keys: Float[Array, "*L B S H K"]
    values: Float[Array, "*L B S H K"]


class Context(NamedTuple):
    """What decoding keeps of each sentence: the decoder's view of the encoder's output."""

    keys_values: KeysValues
    mask: Bool[Array, "B S"]


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward, each in its residual sublayer."""

    config: TransformerConfig

    def setup(self):
        self.self_attention = Attention(self.config)
        self.self_attention_residual = ResidualSublayer(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = ResidualSublayer(self.config)

    def __call__(self, carry: Carry, layer: None, shared: tuple) -> tuple[Carry, None]:
        mask, real, deterministic = shared

        def attend(h):
            keys_values = self.self_attention.keys_values(h)
            return self.self_attention(h, *keys_values, mask, deterministic=deterministic)

        def feed_forward(h):
            return self.feed_forward(h, deterministic=deterministic)

        carry = self.self_attention_residual(carry, attend, real, deterministic=deterministic)
        carry = self.feed_forward_residual(carry, feed_forward, real, deterministic=deterministic)
        return carry, None


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward, each in its residual sublayer."""

    config: TransformerConfig

    def setup(self):
        self.self_attention = Attention(self.config)
        self.self_attention_residual = ResidualSublayer(self.config)
        self.cross_attention = Attention(self.config)
        self.cross_attention_residual = ResidualSublayer(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = ResidualSublayer(self.config)

    def __call__(self, carry: Carry, layer: None, shared: tuple) -> tuple[Carry, None]:
        """All positions at once; `shared` holds the encoder's output and both masks."""
        encoded, self_mask, cross_mask, real, deterministic = shared

        def attend(h):
            keys_values = self.self_attention.keys_values(h)
            return self.self_attention(h, *keys_values, self_mask, deterministic=deterministic)

        def look(h):
            keys_values = self.cross_attention.keys_values(encoded)
            return self.cross_attention(h, *keys_values, cross_mask, deterministic=deterministic)

        return self._sublayers(carry, attend, look, real, deterministic), None

    def context(self, carry: Carry, layer: None, shared: tuple) -> tuple[Carry, KeysValues]:
        """This layer's keys and values of the encoder's output, made once for a translation."""
        (encoded,) = shared
        return carry, KeysValues(*self.cross_attention.keys_values(encoded))

    def step(
        self, carry: Carry, layer: tuple[KeysValues, KeysValues], shared: tuple
    ) -> tuple[Carry, KeysValues]:
        """One position, x (N, 1, D): reads and extends the cache, whose new slice it returns."""
        source, cache = layer
        source_mask, index = shared

        def attend(h):
            nonlocal cache
            new = KeysValues(*self.self_attention.keys_values(h))
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
            cache = jax.tree.map(lambda old, new: write(old, new, index), cache, new)
            seen = (jnp.arange(cache.keys.shape[1]) <= index)[None, None]
            return self.self_attention(h, cache.keys, cache.values, seen, deterministic=True)

        def look(h):
            # The hypotheses of one sentence stand as its queries, so its context is never tiled.
            queries = h.reshape(source_mask.shape[0], -1, h.shape[-1])
            mask = source_mask[:, None]
            out = self.cross_attention(queries, *source, mask, deterministic=True)
            return out.reshape(h.shape)

        real = jnp.ones(carry.x.shape[:2], bool)
        return self._sublayers(carry, attend, look, real, True), cache

    def _sublayers(self, carry, attend, look, real, deterministic) -> Carry:
        def feed_forward(h):
            return self.feed_forward(h, deterministic=deterministic)

        carry = self.self_attention_residual(carry, attend, real, deterministic=deterministic)
        carry = self.cross_attention_residual(carry, look, real, deterministic=deterministic)
        return self.feed_forward_residual(carry, feed_forward, real, deterministic=deterministic)


def _stack(block: type[nn.Module], methods: list[str], num_layers: int) -> Any:
    """The block repeated over depth, its parameters stacked on a leading axis `layers`."""
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),  # pyright: ignore[reportArgumentType] (Flax says int)
        out_axes=0,
        length=num_layers,
        methods=methods,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


def shift_right(
    targets: Int[Array, "B T"], positions: Int[Array, "B T"], bos_id: int
) -> Int[Array, "B T"]:
    """What the decoder reads: the token before, and bos at the start of each example."""
    return jnp.where(positions == 0, bos_id, jnp.roll(targets, 1, axis=1))


class EncoderDecoder(nn.Module):
    """The original Transformer (Vaswani et al. 2017), its residual scheme a choice."""

    config: TransformerConfig

    def setup(self):
        config = self.config
        table = embeddings.TokenTable
        if config.tied_embeddings == "all":
            self.embedding = table(config)
            self.source_table = self.target_table = self.embedding
        else:
            self.source_embedding = table(config)
            self.target_embedding = table(config)
            self.source_table, self.target_table = self.source_embedding, self.target_embedding
        if config.tied_embeddings == "none":
            self.logits = embeddings.OutputProjection(config)
        self.source_positions = embeddings.Positions(config)
        self.target_positions = embeddings.Positions(config)
        encoder = _stack(EncoderBlock, ["__call__"], config.num_encoder_layers)
        decoder = _stack(DecoderBlock, ["__call__", "context", "step"], config.num_decoder_layers)
        self.encoder = encoder(config)
        self.decoder = decoder(config)
        if SCHEMES[config.residual].final_norm:
            self.encoder_norm = Norm(config)
            self.decoder_norm = Norm(config)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Float[Array, "B T V"]:
        """Float32 logits of every target token, given the tokens before it.

        Args:
          batch: `inputs` (B, S) and `targets` (B, T), each with `_segment_ids` (0 is padding, the
            examples of a packed row count from 1) and `_positions` (from 0 in each example).
          deterministic: no dropout, and no "dropout" key needed.
        """
        encoded = self._encode(batch, deterministic)
        segments, positions = batch["targets_segment_ids"], batch["targets_positions"]
        length = segments.shape[1]
        tokens = shift_right(batch["targets"], positions, self.config.bos_id)
        x = self.target_table.embed(tokens)
        x = self.target_positions(x, positions, length=length, deterministic=deterministic)
        self_mask = segment_mask(segments, segments) & causal_mask(length)[None]
        cross_mask = segment_mask(segments, batch["inputs_segment_ids"])
        shared = (encoded, self_mask, cross_mask, segments > 0, deterministic)
        (x, _), _ = self.decoder(Carry.start(x), None, shared)
        return self._logits(x)

    def start(self, batch: Batch, max_length: int) -> tuple[Context, KeysValues]:
        """Encodes the inputs, one example a row, for decoding at most max_length tokens.

        Returns the context of each sentence, and an empty cache (L, B, max_length, H, K).
        """
        config = self.config
        encoded = self._encode(batch, True)
        carry = Carry.start(encoded)
        _, keys_values = self.decoder.context(carry, None, (encoded,))
        size = (
            config.num_decoder_layers,
            encoded.shape[0],
            max_length,
            *keys_values.keys.shape[3:],
        )
        empty = jnp.zeros(size, config.compute_dtype)
        context = Context(keys_values, batch["inputs_segment_ids"] > 0)
        return context, KeysValues(empty, empty)

    def step(
        self, context: Context, cache: KeysValues, tokens: Int[Array, "N"], index: Int[Array, ""]
    ) -> tuple[Float[Array, "N V"], KeysValues]:
        """Logits of the token after `tokens`, of which `index` stand in the cache before.

        N is the number of sentences times hypotheses of each; those of one sentence are adjacent.
        """
        max_length = cache.keys.shape[2]
        x = self.target_table.embed(tokens[:, None])
        positions = jnp.broadcast_to(index, (tokens.shape[0], 1))
        x = self.target_positions(x, positions, length=max_length, deterministic=True)
        carry, layers = Carry.start(x), (context.keys_values, cache)
        (x, _), cache = self.decoder.step(carry, layers, (context.mask, index))
        return self._logits(x)[:, 0], cache

    def _encode(self, batch: Batch, deterministic: bool) -> Float[Array, "B S D"]:
        segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
        x = self.source_table.embed(batch["inputs"])
        x = self.source_positions(
            x, positions, length=segments.shape[1], deterministic=deterministic
        )
        shared = (segment_mask(segments, segments), segments > 0, deterministic)
        (x, _), _ = self.encoder(Carry.start(x), None, shared)
        return self.encoder_norm(x) if SCHEMES[self.config.residual].final_norm else x

    def _logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        if SCHEMES[self.config.residual].final_norm:
            x = self.decoder_norm(x)
        if self.config.tied_embeddings == "none":
            return self.logits(x)
        return self.target_table.logits(x)
