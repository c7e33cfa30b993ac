"""The three shapes, each made of stacks of blocks: encoder-decoder, encoder-only, decoder-only."""

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.models.family import Outputs
from transformer_jax.models.layers.embeddings import (
    TIED_EMBEDDINGS,
    LogitsBias,
    TokenTable,
    Unprojected,
    shift_right,
)
from transformer_jax.models.layers.heads import HEADS, pool
from transformer_jax.models.layers.masks import segment_mask
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.layers.positions import Positions
from transformer_jax.models.transformer import parts
from transformer_jax.models.transformer.blocks import Rows, Step
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    multipliers,
    scheme,
)
from transformer_jax.models.transformer.memory import Memory
from transformer_jax.models.transformer.residual import Carry, finish
from transformer_jax.models.transformer.stepping import (
    Cache,
    Prompt,
    Source,
    contexts,
    held,
    layers_of,
    step_through,
)

Batch = dict[str, Int[Array, "B _"]]
Params = PyTree[Float[Array, "..."]]


class EncoderDecoder(nn.Module):
    """The original Transformer (Vaswani et al. 2017), its residual scheme a choice."""

    config: TransformerConfig

    def setup(self):
        config = self.config
        tied = TIED_EMBEDDINGS[config.tied_embeddings]
        if tied.tables:
            self.embedding = parts.table(config)
            self.source_table = self.target_table = self.embedding
        else:
            self.source_embedding = parts.table(config)
            self.target_embedding = parts.table(config)
            self.source_table, self.target_table = self.source_embedding, self.target_embedding
        if not tied.logits:
            self.logits = parts.logits(config)
        if config.logits_bias:
            self.logits_bias = LogitsBias(config.vocab_size)
        self.source_positions = parts.add_positions(config, "encoder")
        self.target_positions = parts.add_positions(config, "decoder")
        self.encoder_bias = parts.relative_bias(config, "encoder")
        self.decoder_bias = parts.relative_bias(config, "decoder")
        self.encoder = parts.layers(config, "encoder")
        self.decoder = parts.layers(config, "decoder")
        if scheme(config, "encoder").ends_in_norm:
            self.encoder_norm = Norm(config.norm, config.norm_epsilon)
        if scheme(config, "decoder").ends_in_norm:
            self.decoder_norm = Norm(config.norm, config.norm_epsilon)

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
        encoded = _encode(self, self.source_table, self.source_positions, batch, deterministic)
        segments, positions = batch["targets_segment_ids"], batch["targets_positions"]
        length = segments.shape[1]
        tokens = shift_right(batch["targets"], positions, self.config.bos_id)
        x = self.target_table.embed(tokens)
        x = self.target_positions(x, positions, length=length, deterministic=deterministic)
        shared = Rows(
            mask=parts.mask(self.config, segments, segments, causal=True),
            rotation=parts.rotation(self.config, positions),
            bias=parts.bias(self.decoder_bias, length),
            real=segments > 0,
            deterministic=deterministic,
            encoded=encoded,
            cross_mask=parts.mask(self.config, segments, batch["inputs_segment_ids"], causal=False),
        )
        start, layers = parts.bottom(self.config, "decoder", x)
        carry, _ = self.decoder(start, layers, shared)
        return Outputs(_outputs(self, self.target_table, carry))

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Source, Cache]:
        """Encodes the inputs, one example a row, for decoding at most max_length tokens.

        Returns bos for each, the context, and an empty cache of max_length slots.
        """
        config = self.config
        encoded = _encode(self, self.source_table, self.source_positions, batch, True)
        layers = layers_of(config, self.decoder.variables["params"])
        real = batch["inputs_segment_ids"] > 0
        context = Source(layers, contexts(config, layers, encoded), real)
        first = jnp.full(encoded.shape[:1], config.bos_id, jnp.int32)
        return first, context, Cache.empty(config, encoded.shape[0], max_length)

    def step(
        self,
        context: Source,
        cache: Cache,
        tokens: Int[Array, "N"],
        index: Int[Array, ""],
        ancestors: Int[Array, "B J _"] | None = None,
    ) -> tuple[Float[Array, "N V"], Cache]:
        """Logits of the token after `tokens`, of which `index` stand in the cache before.

        N is the number of sentences times hypotheses of each; those of one sentence are adjacent.

        Args:
          ancestors: the row of its sentence, from 0, that holds each token of a hypothesis; None:
            its own.
        """
        x = self.target_table.embed(tokens[:, None])
        positions = jnp.broadcast_to(index, (tokens.shape[0], 1))
        x = self.target_positions(x, positions, length=cache.length, deterministic=True)
        seen = (jnp.arange(cache.length) <= index)[None, None]
        hypotheses = 1
        if ancestors is not None:
            hypotheses = ancestors.shape[1]
            seen = seen & held(ancestors[:, :, : cache.length])
        rotation = parts.rotation(self.config, positions)
        bias = parts.bias(self.decoder_bias, 1, cache.length, index)
        step = Step(index, seen, rotation, bias, hypotheses, context.mask)
        start = parts.bottom(self.config, "decoder", x)
        carry, cache = step_through(
            self.config, context.layers, start, cache, context.keys_values, step
        )
        return _outputs(self, self.target_table, carry).logits()[:, 0], cache


class EncoderOnly(nn.Module):
    """An encoder with one head (Devlin et al. 2019)."""

    config: TransformerConfig

    def setup(self):
        config, row = self.config, HEADS[self.config.head]
        self.embedding = parts.table(config)
        self.positions = parts.add_positions(config, "encoder")
        self.encoder_bias = parts.relative_bias(config, "encoder")
        self.encoder = parts.layers(config, "encoder")
        if scheme(config, "encoder").ends_in_norm:
            self.encoder_norm = Norm(config.norm, config.norm_epsilon)
        self.head = row.module(
            size=config.num_labels if row.labels else config.vocab_size,
            dtype=config.compute_dtype,
            norm=config.norm,
            norm_epsilon=config.norm_epsilon,
            dropout_rate=config.dropout_rate,
            multiplier=multipliers(config).output if row.labels else multipliers(config).hidden,
            name=row.name,
        )
        if not row.labels and not TIED_EMBEDDINGS[config.tied_embeddings].logits:
            self.logits = parts.logits(config)

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
        return _encode(self, self.embedding, self.positions, batch, deterministic)

    def _pool(self, x: Float[Array, "B T D"], batch: Batch) -> Float[Array, "B T D"]:
        segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
        return pool(x, segment_mask(segments, segments), positions, self.config.pooling)


class DecoderOnly(nn.Module):
    """A language model: a stack in which no token sees a later one (Radford et al. 2018)."""

    config: TransformerConfig

    def setup(self):
        config = self.config
        self.embedding = parts.table(config)
        self.positions = parts.add_positions(config, "decoder")
        self.decoder_bias = parts.relative_bias(config, "decoder")
        self.decoder = parts.layers(config, "decoder")
        if scheme(config, "decoder").ends_in_norm:
            self.decoder_norm = Norm(config.norm, config.norm_epsilon)
        if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
            self.logits = parts.logits(config)
        if config.logits_bias:
            self.logits_bias = LogitsBias(config.vocab_size)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Float[Array, "B T V"]:
        """Float32 logits of `outputs`."""
        return self.outputs(batch, deterministic=deterministic).arrays()

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits of every token of `targets`, from those before it in its document.

        `batch` holds `targets` (B, T) with `_segment_ids` and `_positions`, as for the
        encoder-decoder.
        """
        segments, positions = batch["targets_segment_ids"], batch["targets_positions"]
        length, memory = segments.shape[1], self._memory()
        tokens = shift_right(batch["targets"], positions, self.config.bos_id)
        keys = segments
        if memory is not None:
            tokens, keys = memory.before(tokens, segments, positions)
        x = self.embedding.embed(tokens)
        x = self.positions(x, positions, length=length, deterministic=deterministic)
        shared = Rows(
            mask=parts.mask(self.config, segments, keys, causal=True),
            rotation=parts.rotation(self.config, positions),
            bias=parts.bias(self.decoder_bias, length, keys.shape[1], keys.shape[1] - length),
            real=segments > 0,
            deterministic=deterministic,
        )
        hidden = None if memory is None else memory.hidden
        start, layers = parts.bottom(self.config, "decoder", x, hidden)
        carry, hidden = self.decoder(start, layers, shared)
        if memory is not None:
            self._remember(memory.after(hidden, batch["targets"], segments, keys))
        return Outputs(_outputs(self, self.embedding, carry))

    def _memory(self) -> Memory | None:
        """What the caller gives as the collection "memory"; None: nothing."""
        if not self.has_variable("memory", "hidden"):
            return None
        found: dict[str, Any] = {name: self.get_variable("memory", name) for name in Memory._fields}
        return Memory(**found)

    def _remember(self, memory: Memory) -> None:
        if self.is_mutable_collection("memory"):
            for name, value in memory._asdict().items():
                self.put_variable("memory", name, value)

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Prompt, Cache]:
        """Reads prompts, one a row of `inputs` (B, S), for decoding at most max_length tokens.

        A prompt begins with bos. Its last token is not read: the first step does that. Returns
        these tokens, the context, and the cache of all others, of S - 1 + max_length slots. No
        token looks back further than `config.context_length`, to what training never showed.
        """
        lengths = jnp.sum(batch["inputs_segment_ids"] > 0, axis=1)
        rows, width = batch["inputs"].shape
        # Prompts move to the right, so that what follows stands at one place in all rows.
        padding = width - lengths
        positions = jnp.arange(width)[None] - padding[:, None]
        tokens = jnp.take_along_axis(batch["inputs"], jnp.maximum(positions, 0), axis=1)
        layers = layers_of(self.config, self.decoder.variables["params"])
        context = Prompt(layers, padding, jnp.int32(width - 1))
        cache = Cache.empty(self.config, rows, width - 1 + max_length)
        if width > 1:
            _, cache = self._read(context, cache, tokens[:, :-1], jnp.int32(0))
        return tokens[:, -1], context, cache

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
        slot = context.width + index
        carry, cache = self._read(context, cache, tokens[:, None], slot, ancestors)
        return _outputs(self, self.embedding, carry).logits()[:, 0], cache

    def _read(
        self,
        context: Prompt,
        cache: Cache,
        tokens: Int[Array, "N T"],
        slot: Int[Array, ""],
        ancestors: Int[Array, "B J _"] | None = None,
    ) -> tuple[Carry, Cache]:
        """Tokens that stand from `slot` on, after what is in the cache."""
        rows, length = tokens.shape[0], cache.length
        padding = jnp.repeat(context.padding, rows // context.padding.shape[0])
        slots = slot + jnp.arange(tokens.shape[1])
        positions = jnp.maximum(slots[None] - padding[:, None], 0)
        x = self.embedding.embed(tokens)
        # Slots outnumber learned positions where a short prompt stands in a wide row.
        bound = min(length, self.config.longest_row or length)
        x = self.positions(x, positions, length=bound, deterministic=True)
        key_slots = jnp.arange(length)[None]
        back = slots[:, None] - key_slots  # how far each query would look back
        seen = back >= 0
        if self.config.context_length is not None:
            seen = seen & (back < self.config.context_length)
        seen = seen[None] & (key_slots >= padding[:, None])[:, None]
        hypotheses = 1
        if ancestors is not None:
            hypotheses = ancestors.shape[1]
            places = jnp.arange(length) - context.width  # below 0: of the prompt
            chosen = ancestors[:, :, jnp.clip(places, 0, ancestors.shape[2] - 1)]
            own = jnp.arange(hypotheses)[None, :, None]
            seen = seen & held(jnp.where(places[None, None] < 0, own, chosen))
        rotation = parts.rotation(self.config, positions)
        bias = parts.bias(self.decoder_bias, len(slots), length, slot)
        step = Step(slot, seen, rotation, bias, hypotheses)
        start, sources = parts.bottom(self.config, "decoder", x), [None] * len(context.layers)
        return step_through(self.config, context.layers, start, cache, sources, step)


Model = EncoderDecoder | EncoderOnly | DecoderOnly
MODELS: dict[str, type[Model]] = {
    "encoder_decoder": EncoderDecoder,
    "encoder_only": EncoderOnly,
    "decoder_only": DecoderOnly,
}


def _encode(
    model: EncoderDecoder | EncoderOnly,
    table: TokenTable,
    add_positions: Positions,
    batch: Batch,
    deterministic: bool,
) -> Float[Array, "B S D"]:
    """The model's encoder over `inputs`, each text seeing itself alone."""
    segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
    x = table.embed(batch["inputs"])
    x = add_positions(x, positions, length=segments.shape[1], deterministic=deterministic)
    shared = Rows(
        mask=parts.mask(model.config, segments, segments, causal=False),
        rotation=parts.rotation(model.config, positions),
        bias=parts.bias(model.encoder_bias, segments.shape[1]),
        real=segments > 0,
        deterministic=deterministic,
    )
    start, layers = parts.bottom(model.config, "encoder", x)
    carry, _ = model.encoder(start, layers, shared)
    row = scheme(model.config, "encoder")
    x = finish(row, model.encoder_norm if row.ends_in_norm else None, carry)
    observe(model, encoder_output=x)
    return x


def _outputs(model: EncoderDecoder | DecoderOnly, table: TokenTable, carry: Carry) -> Unprojected:
    """What the model's decoder says of the next token."""
    row = scheme(model.config, "decoder")
    x = finish(row, model.decoder_norm if row.ends_in_norm else None, carry)
    observe(model, decoder_output=x)
    projected = _project(model, table, x)
    if not model.config.logits_bias:
        return projected
    return projected._replace(bias=model.logits_bias())


def _project(model: Model, table: TokenTable, x: Float[Array, "B T D"]) -> Unprojected:
    """The projection to tokens, by the table or a kernel of its own."""
    tied = TIED_EMBEDDINGS[model.config.tied_embeddings].logits
    return table.project(x) if tied else model.logits(x)
