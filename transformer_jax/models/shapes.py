"""The architectures, once for all families: encoder-decoder, encoder-only, decoder-only, sets.

A model is made of a config, which says what its embeddings and its head are, and of the stacks that
its family offers (see `stacks`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.family import Batch, Outputs
from transformer_jax.models.inputs import INPUTS
from transformer_jax.models.layers.embeddings import (
    TIED_EMBEDDINGS,
    LogitsBias,
    OutputProjection,
    TokenTable,
    Unprojected,
    shift_right,
)
from transformer_jax.models.layers.heads import HEADS, POOLINGS
from transformer_jax.models.layers.masks import segment_mask
from transformer_jax.models.layers.observe import observe, sums_of
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.layers.product import kernel_first
from transformer_jax.models.memory import Memory
from transformer_jax.models.stacks import Place, Prompts, Stacks, Vectors


class Context(NamedTuple):
    """What decoding keeps of the texts that it translates or continues.

    decoder: what the decoder keeps (see `stacks.Layers.start`).
    table: what gives logits, in the compute dtype.
    """

    decoder: Any
    prompts: Prompts | None
    table: Float[Array, "V D"]


class Architecture(nn.Module):
    """A model that a config and stacks make, called for the arrays of its outputs."""

    config: Any
    stacks: Stacks

    outputs: ClassVar[Callable[..., Outputs]]  # (batch, deterministic=)

    def __call__(self, batch: Batch, *, deterministic: bool) -> Any:
        """Float32 logits, or what else the head gives."""
        return self.outputs(batch, deterministic=deterministic).arrays()


class Writer(Architecture):
    """What the architectures with a decoder share: it tells the token after those that it has read.

    Each has a token `table`, a `decoder`, and an `encoder` or None.
    """

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits of every token of `targets`, given those before it in its text.

        Args:
          batch: `targets` (B, T), and the `inputs` (B, S) of an encoder, each with `_segment_ids`
            (0 is padding, the examples of a packed row count from 1) and `_positions` (from 0 in
            each example). Where the caller gives a `Memory`, rows continue those before.
          deterministic: no dropout, and no "dropout" key needed.
        """
        encoded = None if self.encoder is None else _encode(self, batch, deterministic)
        segments, positions = batch["targets_segment_ids"], batch["targets_positions"]
        tokens = shift_right(batch["targets"], positions, self.config.bos_id)
        memory, past = self._memory(), None
        if memory is not None:
            tokens, past = memory.before(tokens, segments, positions)
        inputs = Vectors(self.table.embed(tokens), segments, positions)
        decoded, hidden = self.decoder(inputs, encoded, past, deterministic=deterministic)
        if past is not None and self.is_mutable_collection("memory"):
            after = Memory.after(past, hidden, batch["targets"], segments)
            for name, value in after._asdict().items():
                self.put_variable("memory", name, value)
        return Outputs(self._next_tokens(decoded.x), sums_of(self))

    def _memory(self) -> Memory | None:
        """What the caller gives as the collection "memory"; None: nothing."""
        if not self.has_variable("memory", "hidden"):
            return None
        return Memory(*(self.get_variable("memory", name) for name in Memory._fields))

    def step(
        self,
        context: Context,
        cache: Any,
        tokens: Int[Array, "N"],
        index: Int[Array, ""],
        ancestors: Int[Array, "B J _"] | None = None,
    ) -> tuple[Float[Array, "N V"], Any]:
        """Logits of the token after `tokens`, the `index`-th ones after what `start` has read.

        N is the number of texts times hypotheses of each; those of one text are adjacent.

        Args:
          ancestors: the row of its text, from 0, that read each of these tokens of a hypothesis;
            None: its own.
        """
        slot = index if context.prompts is None else context.prompts.width + index
        x = self.table.embed(tokens[:, None])
        place = Place(slot, context.prompts, ancestors)
        x, cache = self.decoder.step(x, context.decoder, cache, place)
        projected = dataclasses.replace(self._next_tokens(x), table=context.table)
        return projected.logits(kernel_first)[:, 0], cache

    def _context(self, context: Any, prompts: Prompts | None) -> Context:
        """See `Context`; the table is laid out and converted once, and not at each step."""
        nothing = jnp.zeros((1, 1, self.config.d_model), self.config.compute_dtype)
        return Context(context, prompts, _logits(self, nothing).table.astype(nothing.dtype))

    def _next_tokens(self, x: Float[Array, "B T D"]) -> Unprojected:
        observe(self, decoder_output=x)
        projected = _logits(self, x)
        if not self.config.logits_bias:
            return projected
        return dataclasses.replace(projected, bias=self.logits_bias())


class EncoderDecoder(Writer):
    """A decoder that looks at what an encoder made of its inputs (Vaswani et al. 2017)."""

    def setup(self):
        config = self.config
        tied = TIED_EMBEDDINGS[config.tied_embeddings].tables
        name = "embedding" if tied else "source_embedding"
        self.source = INPUTS[config.inputs].module(config, name=name)
        self.table = self.source if tied else TokenTable(config, name="target_embedding")
        _set_up_logits(self)
        stacks = self.stacks(config)
        self.encoder, self.decoder = stacks["encoder"], stacks["decoder"]

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Context, Any]:
        """Encodes the inputs, one example a row, for decoding at most max_length tokens.

        Returns bos for each, the context, and a cache of max_length slots.
        """
        encoded = _encode(self, batch, True)
        rows = encoded.x.shape[0]
        context, cache = self.decoder.start(rows, max_length, encoded, None)
        first = jnp.full((rows,), self.config.bos_id, jnp.int32)
        return first, self._context(context, None), cache


class EncoderOnly(Architecture):
    """An encoder with one head (Devlin et al. 2019; Graves and Schmidhuber 2005)."""

    def setup(self):
        config, head = self.config, HEADS[self.config.head]
        self.source = self.table = INPUTS[config.inputs].module(config, name="embedding")
        self.encoder = self.stacks(config)["encoder"]
        self.head = head.module(config, name=head.name)
        if not head.labels:
            _set_up_logits(self, bias=False)

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What gives the logits at every token of `inputs`: of tokens (V), or of labels (C).

        Where the head is pooled they are the same at all tokens of a text. `batch` holds `inputs`
        (B, T) with `_segment_ids` and `_positions`, as for the encoder-decoder.
        """
        encoded = _encode(self, batch, deterministic)
        x = self._pool(encoded) if HEADS[self.config.head].pooled else encoded.x
        project = functools.partial(_logits, self)
        values = self.head(x, project, deterministic=deterministic)
        return Outputs(values, sums_of(self))

    def embed(self, batch: Batch) -> Float[Array, "B T D"]:
        """At every token the vector of its whole text, pooled as `config.pooling` says."""
        return self._pool(_encode(self, batch, True))

    def _pool(self, texts: Vectors) -> Float[Array, "B T D"]:
        mask = segment_mask(texts.segments, texts.segments)
        if texts.grid is not None:  # what stands before the patches is no part of an image
            mask &= texts.grid[:, None, :, 2] > 0
        return POOLINGS[self.config.pooling].vector(texts.x, mask, texts.positions)


class DecoderOnly(Writer):
    """A language model: no token sees a later one (Radford et al. 2018; Mikolov et al. 2010)."""

    def setup(self):
        self.table = TokenTable(self.config, name="embedding")
        _set_up_logits(self)
        self.encoder, self.decoder = None, self.stacks(self.config)["decoder"]

    def start(self, batch: Batch, max_length: int) -> tuple[Int[Array, "B"], Context, Any]:
        """Reads prompts, one a row of `inputs` (B, S), for decoding at most max_length tokens.

        A prompt begins with bos. Its last token is not read: the first step does that. Returns
        these tokens, the context, and the cache of all others, of S - 1 + max_length slots or
        some more. No token looks back further than `config.context_length`, as in training.
        """
        lengths = jnp.sum(batch["inputs_segment_ids"] > 0, axis=1)
        rows, width = batch["inputs"].shape
        # Prompts move to the right, so that what follows stands at one place in all rows.
        padding = width - lengths
        positions = jnp.arange(width)[None] - padding[:, None]
        tokens = jnp.take_along_axis(batch["inputs"], jnp.maximum(positions, 0), axis=1)
        prompt = None
        if width > 1:
            before = positions[:, :-1]
            x = self.table.embed(tokens[:, :-1])
            prompt = Vectors(x, (before >= 0).astype(jnp.int32), before)
        # Whole lines of memory: of 79 slots a CPU's product takes nearly twice the time of 80.
        slots = -(-(width - 1 + max_length) // 8) * 8
        context, cache = self.decoder.start(rows, slots, None, prompt)
        prompts = Prompts(padding, jnp.int32(width - 1))
        return tokens[:, -1], self._context(context, prompts), cache


class Queries(nn.Module):
    """A learned vector for each element that may be told, drawn from N(0, 1).

    They are the positions of a decoder that starts from zeros (Carion et al. 2020, 2005.12872,
    appendix A.3 and code) or, with `positions_in="stream"`, what enters it.
    """

    config: Any

    @nn.compact
    def __call__(self, rows: int) -> Vectors:
        """The same of each row."""
        config, axes = self.config, ("positions", "embed")
        init, size = nn.initializers.normal(1.0), (config.num_queries, config.d_model)
        table = parameter(self, "table", init, size, axes, matrix=(1, 1), role="embedding")
        x = constrain(jnp.broadcast_to(table[None], (rows, *size)), "batch")
        ones = jnp.ones((rows, config.num_queries), jnp.int32)
        vectors = Vectors(x, segments=ones, positions=jnp.zeros_like(ones))  # in no order
        if config.positions_in == "stream":
            return vectors
        return vectors._replace(x=jnp.zeros_like(x), offsets=x)


class EncoderSet(Architecture):
    """An encoder, and a decoder that tells the elements of a set at once (Carion et al. 2020)."""

    def setup(self):
        config, head = self.config, HEADS[self.config.head]
        self.source = INPUTS[config.inputs].module(config, name="embedding")
        self.queries = Queries(config)
        stacks = self.stacks(config)
        self.encoder, self.decoder = stacks["encoder"], stacks["decoder"]
        self.head = head.module(config, name=head.name)

    def outputs(self, batch: Batch, *, deterministic: bool) -> Outputs:
        """What the head says of each query, by each of the decoder's layers.

        `batch` holds `inputs` (B, S, ...) with `_segment_ids`, `_positions` and what else their
        kind has. A row has one set: its inputs are of one segment.
        """
        encoded = _encode(self, batch, deterministic)
        queries = self.queries(len(batch["inputs"]))
        decoded, by_layer = self.decoder(queries, encoded, deterministic=deterministic)
        observe(self, decoder_output=decoded.x)
        return Outputs(self.head(by_layer), sums_of(self))


_SHAPES = {
    "encoder_decoder": EncoderDecoder,
    "encoder_only": EncoderOnly,
    "decoder_only": DecoderOnly,
    "encoder_set": EncoderSet,
}


def model_of(stacks: Stacks) -> Callable[[Any], Any]:
    """Makes models of a family: config -> the model of its architecture."""
    return lambda config: _SHAPES[config.architecture](config, stacks)


def _set_up_logits(model: Any, bias: bool = True) -> None:
    """The modules of logits beside the token table; `bias`: where the config has one."""
    config = model.config
    if not TIED_EMBEDDINGS[config.tied_embeddings].logits:
        model.logits = OutputProjection(config)
    if bias and config.logits_bias:
        model.logits_bias = LogitsBias(config)


def _encode(model: Any, batch: Batch, deterministic: bool) -> Vectors:
    """What the model's encoder makes of the inputs, each text seeing itself alone."""
    inputs = INPUTS[model.config.inputs].read(model.source, batch)
    encoded, _ = model.encoder(inputs, deterministic=deterministic)
    observe(model, encoder_output=encoded.x)
    return encoded


def _logits(model: Any, x: Float[Array, "B T D"]) -> Unprojected:
    """The projection to tokens, by the table or a kernel of its own."""
    tied = TIED_EMBEDDINGS[model.config.tied_embeddings].logits
    projected = model.table.project(x) if tied else model.logits(x)
    return dataclasses.replace(projected, softcap=model.config.logits_softcap)
