"""The three shapes of recurrent models: encoder-decoder, encoder-only, decoder-only."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from transformer_jax.models.family import Outputs
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.embeddings import (
    TIED_EMBEDDINGS,
    OutputProjection,
    TokenTable,
    Unprojected,
    shift_right,
)
from transformer_jax.models.layers.heads import HEADS, pool
from transformer_jax.models.layers.masks import segment_mask
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.decoder import (
    Beam,
    Cache,
    Decoder,
    Encoded,
    Source,
    add_residual,
)
from transformer_jax.models.recurrent.layers import Bidirectional, Recurrent

Batch = dict[str, Int[Array, "B _"]]
Params = PyTree[Float[Array, "..."]]


class Prompt(NamedTuple):
    """What decoding keeps of each prompt: prompts end side by side, with padding in front."""

    padding: Int[Array, "B"]
    width: Int[Array, ""]


class Encoder(nn.Module):
    """Layers over `inputs`, of which some or all read in both directions."""

    config: RecurrentConfig

    def setup(self):
        config = self.config
        width = inputs = config.d_model
        if config.architecture == "encoder_only":
            width //= 2  # so that both directions make d_model
        settings, layers = (width, config.compute_dtype, config.remat), []
        for number in range(1, config.num_encoder_layers + 1):
            both = config.both_ways(number)
            kind = Bidirectional if both else Recurrent
            layers.append(kind(config.row.cell, inputs, *settings, name=f"layer_{number}"))
            inputs = (2 if both else 1) * width
        self.layers = layers
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self, x: Float[Array, "B S D"], batch: Batch, *, deterministic: bool
    ) -> Float[Array, "B S C"]:
        segments, starts = batch["inputs_segment_ids"], batch["inputs_positions"] == 0
        ends = jnp.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (0, 1)], constant_values=True)
        for number, layer in enumerate(self.layers, 1):
            if isinstance(layer, Bidirectional):
                out = layer(x, starts, ends)
            else:
                out, *_ = layer(x, starts)
            out = self.dropout(out, deterministic=deterministic)
            x = add_residual(self.config, number, x, out)
        return x


class EncoderDecoder(nn.Module):
    """Translation before the Transformer, with attention or without (see `RECURRENCES`)."""

    config: RecurrentConfig

    def setup(self):
        config = self.config
        if TIED_EMBEDDINGS[config.tied_embeddings].tables:
            self.embedding = _table(config)
            self.source_table = self.target_table = self.embedding
        else:
            self.source_embedding = _table(config)
            self.target_embedding = _table(config)
            self.source_table, self.target_table = self.source_embedding, self.target_embedding
        _set_up_logits(self)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        self.dropout = Dropout(config.embedding_dropout_rate)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Float[Array, "B T V"]:
        """Float32 logits of `outputs`."""
        return self.outputs(batch, deterministic=deterministic).arrays()

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits of every target token, given the tokens before it.

        Args:
          batch: `inputs` (B, S) and `targets` (B, T), each with `_segment_ids` (0 is padding, the
            examples of a packed row count from 1) and `_positions` (from 0 in each example).
          deterministic: no dropout, and no "dropout" key needed.
        """
        segments, positions = batch["targets_segment_ids"], batch["targets_positions"]
        output = self._encode(batch, deterministic)
        sources = batch["inputs_segment_ids"]
        encoded = Encoded(output, sources, segment_mask(segments, sources))
        x = self.target_table.embed(shift_right(batch["targets"], positions, self.config.bos_id))
        x = self.dropout(x, deterministic=deterministic)
        x, _ = self.decoder(x, positions, segments, encoded, deterministic=deterministic)
        return Outputs(_project(self, self.target_table, x))

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Source, Cache]:
        """Encodes the inputs, one example a row. Returns bos for each, the context, and states."""
        sources = batch["inputs_segment_ids"]
        encoded = Encoded(self._encode(batch, True), sources, (sources > 0)[:, None])
        source, cache = self.decoder.source(encoded)
        first = jnp.full(sources.shape[:1], self.config.bos_id, jnp.int32)
        return first, source, cache

    def step(
        self,
        context: Source,
        cache: Cache,
        tokens: Int[Array, "N"],
        index: Int[Array, ""],
        ancestors: Int[Array, "B J _"] | None = None,
    ) -> tuple[Float[Array, "N V"], Cache]:
        """Logits of the token after `tokens`, of which `index` have been read before.

        N is the number of sentences times hypotheses of each; those of one sentence are adjacent.

        Args:
          ancestors: the row of its sentence, from 0, that read each token of a hypothesis; None:
            its own.
        """
        nowhere = jnp.int32(0)
        beam = None if ancestors is None else Beam(ancestors, index, nowhere)
        x = self.target_table.embed(tokens[:, None])[:, 0]
        x, cache = self.decoder.step(x, cache, context, beam, nowhere, tokens * 0)
        return _project(self, self.target_table, x[:, None]).logits()[:, 0], cache

    def _encode(self, batch: Batch, deterministic: bool) -> Float[Array, "B S C"]:
        x = self.source_table.embed(batch["inputs"])
        x = self.dropout(x, deterministic=deterministic)
        return self.encoder(x, batch, deterministic=deterministic)


class EncoderOnly(nn.Module):
    """A stack that reads in both directions, with one head (Graves and Schmidhuber 2005)."""

    config: RecurrentConfig

    def setup(self):
        config, row = self.config, HEADS[self.config.head]
        self.embedding = _table(config)
        self.encoder = Encoder(config)
        self.dropout = Dropout(config.embedding_dropout_rate)
        self.head = row.module(
            size=config.num_labels if row.labels else config.vocab_size,
            dtype=config.compute_dtype,
            norm="layer_norm",
            dropout_rate=config.dropout_rate,
            name=row.name,
        )
        if not row.labels:
            _set_up_logits(self)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Float[Array, "B T _"]:
        """Float32 logits of `outputs`."""
        return self.outputs(batch, deterministic=deterministic).arrays()

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits at every token of `inputs`: of tokens (V), or of labels (C).

        Where the head is pooled they are the same at all tokens of a text. `batch` holds `inputs`
        (B, T) with `_segment_ids` and `_positions`, as for the encoder-decoder.
        """
        x = self._encode(batch, deterministic)
        if HEADS[self.config.head].pooled:
            x = self._pool(x, batch)
        project = functools.partial(_project, self, self.embedding)
        return Outputs(self.head(x, project, deterministic=deterministic))

    def embed(self, batch: Batch) -> Float[Array, "B T D"]:
        """At every token the vector of its whole text, pooled as `config.pooling` says."""
        return self._pool(self._encode(batch, True), batch)

    def _encode(self, batch: Batch, deterministic: bool) -> Float[Array, "B T D"]:
        x = self.embedding.embed(batch["inputs"])
        x = self.dropout(x, deterministic=deterministic)
        return self.encoder(x, batch, deterministic=deterministic)

    def _pool(self, x: Float[Array, "B T D"], batch: Batch) -> Float[Array, "B T D"]:
        segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
        return pool(x, segment_mask(segments, segments), positions, self.config.pooling)


class DecoderOnly(nn.Module):
    """A language model (Mikolov et al. 2010; with dropout as in Zaremba et al. 2014, 1409.2329)."""

    config: RecurrentConfig

    def setup(self):
        self.embedding = _table(self.config)
        self.decoder = Decoder(self.config)
        self.dropout = Dropout(self.config.embedding_dropout_rate)
        _set_up_logits(self)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Float[Array, "B T V"]:
        """Float32 logits of `outputs`."""
        return self.outputs(batch, deterministic=deterministic).arrays()

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits of every token of `targets`, from those before it in its document.

        `batch` holds `targets` (B, T) with `_segment_ids` and `_positions`, as for the
        encoder-decoder.
        """
        positions = batch["targets_positions"]
        tokens = shift_right(batch["targets"], positions, self.config.bos_id)
        x = self.dropout(self.embedding.embed(tokens), deterministic=deterministic)
        x, _ = self.decoder(x, positions, deterministic=deterministic)
        return Outputs(_project(self, self.embedding, x))

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Prompt, Cache]:
        """Reads prompts, one a row of `inputs` (B, S), for decoding at most max_length tokens.

        A prompt begins with bos. Its last token is not read: the first step does that. Returns
        these tokens, the context, and the states after all others.
        """
        lengths = jnp.sum(batch["inputs_segment_ids"] > 0, axis=1)
        rows, width = batch["inputs"].shape
        # Prompts move to the right, so that all end at the same step.
        padding = width - lengths
        positions = jnp.arange(width)[None] - padding[:, None]
        tokens = jnp.take_along_axis(batch["inputs"], jnp.maximum(positions, 0), axis=1)
        if width == 1:
            cache = self.decoder.empty(rows, max_length)
        else:
            x = self.embedding.embed(tokens[:, :-1])
            _, cache = self.decoder(x, positions[:, :-1], deterministic=True)
            # The states of a prompt of one token are those before anything is read.
            cache = jax.tree.map(
                lambda x: jnp.where(jnp.expand_dims(lengths > 1, range(1, x.ndim)), x, 0.0), cache
            ).enlarged(max_length)
        return tokens[:, -1], Prompt(padding, jnp.int32(width - 1)), cache

    def step(
        self,
        context: Prompt,
        cache: Cache,
        tokens: Int[Array, "N"],
        index: Int[Array, ""],
        ancestors: Int[Array, "B J _"] | None = None,
    ) -> tuple[Float[Array, "N V"], Cache]:
        """Logits of the token after `tokens`, the `index`-th of those that follow the prompt.

        N is the number of prompts times hypotheses of each; those of one prompt are adjacent.
        `ancestors` as of `EncoderDecoder.step`; each row holds the prompt.
        """
        beam = None if ancestors is None else Beam(ancestors, index, context.width)
        first = jnp.repeat(context.padding, tokens.shape[0] // context.padding.shape[0])
        x = self.embedding.embed(tokens[:, None])[:, 0]
        x, cache = self.decoder.step(x, cache, None, beam, context.width + index, first)
        return _project(self, self.embedding, x[:, None]).logits()[:, 0], cache


Model = EncoderDecoder | EncoderOnly | DecoderOnly
MODELS: dict[str, type[Model]] = {
    "encoder_decoder": EncoderDecoder,
    "encoder_only": EncoderOnly,
    "decoder_only": DecoderOnly,
}


def initialise(model: Any, key: Key[Array, ""], batch: Batch) -> Params:
    """Draws the model's parameters, boxed with their logical axes.

    Kernels that multiply a state are orthogonal, a matrix for each gate; others Xavier uniform.
    """
    return model.init(key, batch, deterministic=True)["params"]


def _table(config: RecurrentConfig) -> TokenTable:
    scale = config.d_model**0.5
    return TokenTable(config.vocab_size, config.d_model, config.compute_dtype, scale)


def _set_up_logits(model: Model) -> None:
    config = model.config
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        model.logits = OutputProjection(config.vocab_size, config.compute_dtype)


def _project(model: Model, table: TokenTable, x: Float[Array, "B T D"]) -> Unprojected:
    """The projection to tokens, by the table or a kernel of its own."""
    tied = TIED_EMBEDDINGS[model.config.tied_embeddings].logits
    return table.project(x) if tied else model.logits(x)
