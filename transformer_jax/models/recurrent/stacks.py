"""The stack of a decoder, with an encoder or alone: over whole rows, and one token at a time."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.recurrent.cells import State
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.layers import INWARD, XAVIER, Attended, Recurrent
from transformer_jax.models.recurrent.tape import Reader, Tape


class Cache(NamedTuple):
    """The state of each layer."""

    layers: tuple[State | Tape, ...]

    def enlarged(self, by: int) -> "Cache":
        """With room for so many tokens more, where a layer keeps something of each."""
        return Cache(tuple(x.enlarged(by) if isinstance(x, Tape) else x for x in self.layers))


class Encoded(NamedTuple):
    """An encoder's output, and which of its tokens belong to the text of each target token."""

    output: Float[Array, "B S C"]
    segments: Int[Array, "B S"]
    own: Bool[Array, "B T S"]

    def last_states(self) -> tuple[Float[Array, "B T half_C"], Float[Array, "B T half_C"]]:
        """The states with which both directions end: forwards at the last token, backwards at the
        first."""
        first = jnp.argmax(self.own, axis=-1)
        last = self.own.shape[-1] - 1 - jnp.argmax(self.own[..., ::-1], axis=-1)
        forward, backward = jnp.split(self.output, 2, axis=-1)
        return (
            jnp.take_along_axis(forward, last[..., None], axis=1),
            jnp.take_along_axis(backward, first[..., None], axis=1),
        )


class Source(NamedTuple):
    """What decoding keeps of each sentence: what is looked at, or the encoder's last states."""

    attended: Attended | None
    summary: Float[Array, "B C"] | None


class Beam(NamedTuple):
    """Which rows hold what the hypotheses of a sentence have read (see `evaluation.search`).

    ancestors: the row of its sentence, from 0, that read each token of a hypothesis. index: tokens
    decoded before. prompt: slots of a tape before the first of them.
    """

    ancestors: Int[Array, "B K J"]
    index: Int[Array, ""]
    prompt: Int[Array, ""]

    def before(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """The rows of the newest tokens' ancestors; at first each row is its own."""
        parents = self.ancestors[:, :, jnp.maximum(self.index - 1, 0)]
        return self._take(x, parents)

    def view(self, tape: Tape) -> Tape:
        """The tape of each hypothesis, which lies scattered over its sentence's rows."""
        slots, rows = tape.slots.keys.shape[1], self.ancestors.shape[1]
        places = jnp.arange(slots) - self.prompt  # below 0: of the prompt, which every row holds
        chosen = self.ancestors[:, :, jnp.clip(places, 0, self.ancestors.shape[2] - 1)]
        own = jnp.arange(rows)[None, :, None]
        chosen = jnp.where(places[None, None] < 0, own, chosen)
        slots = jax.tree.map(lambda x: self._take(x, chosen), tape.slots)
        return Tape(slots, self.before(tape.read))

    def _take(self, x: Float[Array, "N ..."], rows: Int[Array, "B K ..."]) -> Array:
        by_sentence = x.reshape(*self.ancestors.shape[:2], *x.shape[1:])
        return jnp.take_along_axis(by_sentence, rows[..., None], axis=1).reshape(x.shape)


class Decoder(nn.Module):
    """Layers in which no token sees a later one."""

    config: RecurrentConfig

    def setup(self):
        config, width = self.config, self.config.d_model
        row, source = config.row, config.source_width or 0
        settings = (width, config.compute_dtype)
        layers = []
        for number in range(1, config.num_decoder_layers + 1):
            name, attends = f"layer_{number}", row.attends and number == 1
            inputs = width if attends else width + source
            if row.tape:
                layers.append(Reader(width, *settings, name=name))
            else:
                attended = source if attends else None
                layers.append(
                    Recurrent(row.cell, inputs, *settings, config.remat, attended, name=name)
                )
        self.layers = layers
        self.dropout = Dropout(config.dropout_rate)
        axes, zeros = ("embed", "gates", "state"), nn.initializers.zeros
        if row.bridge:
            size = (source // 2, width)
            self.bridge = parameter(self, "bridge", XAVIER, size, axes[::2], matrix=(1, 1))
            self.bridge_bias = parameter(self, "bridge_bias", zeros, (width,), axes[2:])
        if row.maxout:
            size = (2 * width + source, 2, width)
            self.readout = parameter(self, "readout", INWARD, size, axes, matrix=(1, 2))
            self.readout_bias = parameter(self, "readout_bias", zeros, size[1:], axes[1:])

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        segments: Int[Array, "B T"] | None = None,
        encoded: Encoded | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """What gives the logits at each token of whole rows, and the states at their end.

        Args:
          x: embeddings of the tokens before.
          positions: of each token in its text; states start anew where they are 0 or less.
          segments: the text of each token, where there is an encoder.
        """
        row, embeddings, states = self.config.row, x, []
        initial = attended = contexts = None
        if encoded is not None:
            if row.bridge:
                initial = self._bridge(encoded.last_states()[1])
            if row.attends:
                attended = self.layers[0].attend_to(encoded.output, encoded.segments)
            else:
                contexts = jnp.concatenate(encoded.last_states(), axis=-1)
        for number, layer in enumerate(self.layers, 1):
            if isinstance(layer, Reader):
                out, state = layer(x, positions)
            elif attended is not None and number == 1:
                out, contexts, state = layer(x, positions <= 0, initial, attended, segments)
            else:
                start = initial if number == 1 else None
                out, _, state = layer(_with(x, contexts), positions <= 0, start)
            states.append(state)
            out = self.dropout(out, deterministic=deterministic)
            x = add_residual(self.config, number, x, out)
        return self._read_out(x, embeddings, contexts), Cache(tuple(states))

    def source(self, encoded: Encoded) -> tuple[Source, Cache]:
        """What decoding keeps of each sentence, one a row, and the states before any token."""
        row, rows = self.config.row, encoded.output.shape[0]
        attended = summary = None
        if row.attends:
            attended = self.layers[0].attend_to(encoded.output, encoded.segments)
        else:
            summary = jnp.concatenate(encoded.last_states(), axis=-1)[:, 0]
        bottom, *others = self.empty(rows, 0).layers
        if row.bridge:
            _, backward = encoded.last_states()
            bottom = (self._bridge(backward[:, 0]), *bottom[1:])
        return Source(attended, summary), Cache((bottom, *others))

    def empty(self, rows: int, length: int) -> Cache:
        """The states before anything is read, with room for so many tokens."""
        return Cache(
            tuple(
                layer.empty(rows, length) if isinstance(layer, Reader) else layer.empty(rows)
                for layer in self.layers
            )
        )

    def step(
        self,
        x: Float[Array, "N D"],
        cache: Cache,
        source: Source | None,
        beam: Beam | None,
        slot: Int[Array, ""],
        first: Int[Array, "N"],
    ) -> tuple[Float[Array, "N D"], Cache]:
        """What gives the logits of the token after a new one, x its embedding.

        slot, first: where the new token stands on a tape, and where its text begins there.
        """
        embeddings, states, context = x, [], None
        attended = None if source is None else source.attended
        if source is not None and source.summary is not None:
            context = jnp.repeat(source.summary, x.shape[0] // source.summary.shape[0], axis=0)
        for number, (layer, state) in enumerate(zip(self.layers, cache.layers, strict=True), 1):
            if isinstance(state, Tape):
                view = state if beam is None else beam.view(state)
                state = layer.step(x, state, slot, first, view)
                out = jax.lax.dynamic_index_in_dim(state.slots.hidden, slot, axis=1, keepdims=False)
            else:
                if beam is not None:
                    state = tuple(map(beam.before, state))
                if attended is not None and number == 1:
                    state, context = layer.step(x, state, attended)
                else:
                    state, _ = layer.step(_with(x, context), state)
                out = state[0]
            states.append(state)
            x = add_residual(self.config, number, x, out)
        return self._read_out(x, embeddings, context), Cache(tuple(states))

    def _bridge(self, state: Float[Array, "*B E"]) -> Float[Array, "*B D"]:
        dtype = self.config.compute_dtype
        kernel = self.bridge.astype(dtype)
        out = jnp.tensordot(state.astype(dtype), kernel, 1, preferred_element_type=jnp.float32)
        return jnp.tanh(out + jnp.expand_dims(self.bridge_bias, range(out.ndim - 1)))

    def _read_out(
        self,
        x: Float[Array, "*B D"],
        embeddings: Float[Array, "*B D"],
        contexts: Float[Array, "*B C"] | None,
    ) -> Float[Array, "*B D"]:
        if not self.config.row.maxout:
            return x
        dtype = self.config.compute_dtype
        x = _with(jnp.concatenate([x, embeddings], axis=-1), contexts).astype(dtype)
        kernel = self.readout.astype(dtype)
        out = jnp.tensordot(x, kernel, 1, preferred_element_type=jnp.float32)
        return jnp.max(out + jnp.expand_dims(self.readout_bias, range(x.ndim - 1)), axis=-2)


def add_residual(
    config: RecurrentConfig, layer: int, x: Float[Array, "*B I"], out: Float[Array, "*B D"]
) -> Float[Array, "*B D"]:
    """A layer's output, with its input where this layer (from 1) has a residual connection."""
    first = config.row.residual_from
    return out if first is None or layer < first else x + out


def _with(x: Float[Array, "*B D"], contexts: Float[Array, "*B C"] | None) -> Float[Array, "*B E"]:
    """Both side by side."""
    return x if contexts is None else jnp.concatenate([x, contexts.astype(x.dtype)], axis=-1)
