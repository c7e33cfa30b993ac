"""The stacks of recurrent models, over whole rows and one token at a time.

Kernels that multiply a state are drawn orthogonal, a matrix for each gate; others Xavier uniform.
"""

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_jax.models.family import Batch, Params, parameter_name
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.masks import segment_mask
from transformer_jax.models.layers.parameter import Boxed
from transformer_jax.models.layers.settings import ARCHITECTURES, Stack
from transformer_jax.models.recurrent.cells import State
from transformer_jax.models.recurrent.config import RecurrentConfig
from transformer_jax.models.recurrent.layers import (
    INWARD,
    XAVIER,
    Attended,
    Bidirectional,
    Recurrent,
    kernel,
    vector,
)
from transformer_jax.models.recurrent.tape import Reader
from transformer_jax.models.stacks import Cache, Past, Place, Vectors


class Context(NamedTuple):
    """What decoding keeps of each text: what is looked at, or the encoder's last states, if any."""

    attended: Attended | None
    states: Float[Array, "B C"] | None


class Encoder(nn.Module):
    """Layers of which some or all read in both directions.

    Attributes:
      entry: drops entries of the embeddings.
    """

    config: RecurrentConfig
    entry: Dropout

    def setup(self):
        config = self.config
        width = inputs = config.d_model
        if config.architecture == "encoder_only":
            width //= 2  # so that both directions make d_model
        layers = []
        for number in range(1, config.num_encoder_layers + 1):
            both = config.both_ways(number)
            kind = Bidirectional if both else Recurrent
            layers.append(kind(config, inputs, width, name=f"layer_{number}"))
            inputs = (2 if both else 1) * width
        self.layers = layers
        self.dropout = Dropout(config.dropout_rate)

    def __call__(self, inputs: Vectors, *, deterministic: bool) -> tuple[Vectors, None]:
        """See `stacks.Layers`."""
        segments, starts = inputs.segments, inputs.positions == 0
        ends = jnp.pad(segments[:, 1:] != segments[:, :-1], [(0, 0), (0, 1)], constant_values=True)
        x = self.entry(inputs.x, deterministic=deterministic)
        for number, layer in enumerate(self.layers, 1):
            if isinstance(layer, Bidirectional):
                out = layer(x, starts, ends)
            else:
                out, *_ = layer(x, starts)
            out = self.dropout(out, deterministic=deterministic)
            x = x + out if self.config.adds_input(number) else out
        return inputs._replace(x=x), None


class Decoder(nn.Module):
    """Layers in which no token sees a later one. `entry` as of `Encoder`."""

    config: RecurrentConfig
    entry: Dropout

    def setup(self):
        config, width = self.config, self.config.d_model
        row, source, layers = config.row, 0, []
        if config.architecture == "encoder_decoder":  # as wide as what its encoder leaves
            source = (2 if config.both_ways(config.num_encoder_layers) else 1) * width
        for number in range(1, config.num_decoder_layers + 1):
            name, attends = f"layer_{number}", row.attends and number == 1
            inputs = width if attends else width + source
            if row.tape:
                layers.append(Reader(config, name=name))
            else:
                attended = source if attends else None
                layers.append(Recurrent(config, inputs, width, attended, name=name))
        self.layers = layers
        self.dropout = Dropout(config.dropout_rate)
        if row.bridge:
            self.bridge = kernel(self, "bridge", XAVIER, source // 2, width)
            self.bridge_bias = vector(self, "bridge_bias", width)
        if row.maxout:
            self.readout = kernel(self, "readout", INWARD, 2 * width + source, 2, width)
            self.readout_bias = vector(self, "readout_bias", 2, width)

    def __call__(
        self,
        inputs: Vectors,
        encoded: Vectors | None = None,
        past: Past | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Vectors, Any]:
        """See `stacks.Layers`. Without a past it returns the states at the end as a `Cache`.

        States start anew where positions are 0 or less.
        """
        states = None if past is None else _unpacked(past.hidden, self.config.d_model)
        of_encoder, contexts = {}, None
        if encoded is not None:
            mask = segment_mask(inputs.segments, encoded.segments)
            initial, attended, contexts = self._of_encoder(encoded, mask)
            of_encoder = {"initial": initial, "attended": attended, "segments": inputs.segments}

        # A tape is read back to its text's first state.
        begins = inputs.positions if self.config.row.tape else inputs.positions <= 0

        def advance(number, layer, x):
            before = {} if states is None else {"before": states[number]}
            return layer(x, begins, **before, **(of_encoder if number == 0 else {}))

        x = self.entry(inputs.x, deterministic=deterministic)
        x, cache = self._layers(x, contexts, advance, deterministic)
        return inputs._replace(x=x), cache if past is None else _packed(cache.layers)

    def start(
        self, rows: int, room: int, encoded: Vectors | None, prompt: Vectors | None
    ) -> tuple[Context, Cache]:
        """See `stacks.Layers`."""
        cache = Cache(tuple(layer.empty(rows, room) for layer in self.layers))
        attended = contexts = None
        if encoded is not None:
            mask = (encoded.segments > 0)[:, None]  # as one target token sees it
            initial, attended, contexts = self._of_encoder(encoded, mask)
            if initial is not None:
                bottom, *others = cache.layers
                cache = Cache(((initial[:, 0], *bottom[1:]), *others))
        if prompt is not None:
            _, states = self(prompt, deterministic=True)
            # The states of a prompt of no tokens are those before anything is read.
            read = prompt.segments[:, -1] > 0
            cache = jax.tree.map(
                lambda x: jnp.where(jnp.expand_dims(read, range(1, x.ndim)), x, 0.0), states
            ).enlarged(room - prompt.x.shape[1])
        return Context(attended, None if contexts is None else contexts[:, 0]), cache

    def step(
        self, x: Float[Array, "N 1 D"], context: Context, cache: Cache, place: Place
    ) -> tuple[Float[Array, "N 1 D"], Cache]:
        """See `stacks.Layers`; of one new token a row."""
        x, contexts = x[:, 0], None
        if context.states is not None:
            contexts = jnp.repeat(context.states, x.shape[0] // context.states.shape[0], axis=0)

        def advance(number, layer, x):
            attended = context.attended if number == 0 else None
            return layer.step(x, cache.layers[number], place, attended)

        x, cache = self._layers(x, contexts, advance, deterministic=True)
        return x[:, None], cache

    def _layers(
        self,
        x: Float[Array, "*B D"],
        contexts: Float[Array, "*B C"] | None,
        advance: Callable[..., Any],
        deterministic: bool,
    ) -> tuple[Float[Array, "*B D"], Cache]:
        """All layers one after the other, and the readout if any; and the states that they leave.

        Args:
          contexts: what an encoder says at each token; None where the bottom layer finds it.
          advance: (number from 0, layer, its input) -> (output, what it found or None, state).
        """
        embeddings, states = x, []
        for number, layer in enumerate(self.layers):
            out, context, state = advance(number, layer, _with(x, contexts))
            contexts = contexts if context is None else context
            states.append(state)
            out = self.dropout(out, deterministic=deterministic)
            x = x + out if self.config.adds_input(number + 1) else out
        if self.config.row.maxout:
            x = _with(jnp.concatenate([x, embeddings], axis=-1), contexts)
            x = jnp.max(self._affine(x, self.readout, self.readout_bias), axis=-2)
        return x, Cache(tuple(states))

    def _of_encoder(
        self, encoded: Vectors, mask: Bool[Array, "B T S"]
    ) -> tuple[Array | None, Attended | None, Array | None]:
        """What target tokens get of their sources, where the row has it.

        Returns the state (B, T, D) that the bottom layer starts from, what it looks at, and the
        encoder's last states (B, T, C), which all layers see instead. mask: each token's source.
        """
        row, initial, attended, contexts = self.config.row, None, None, None
        if row.bridge:
            _, backward = _last_states(encoded.x, mask)
            initial = jnp.tanh(self._affine(backward, self.bridge, self.bridge_bias))
        if row.attends:
            attended = self.layers[0].attend_to(encoded.x, encoded.segments)
        else:
            contexts = jnp.concatenate(_last_states(encoded.x, mask), axis=-1)
        return initial, attended, contexts

    def _affine(
        self, x: Float[Array, "*B I"], kernel: Float[Array, "I *out"], bias: Float[Array, "*out"]
    ) -> Float[Array, "..."]:
        dtype = self.config.compute_dtype
        product = functools.partial(jnp.tensordot, axes=1, preferred_element_type=jnp.float32)
        out = product(x.astype(dtype), kernel.astype(dtype))
        return out + jnp.expand_dims(bias, range(x.ndim - 1))


def _last_states(
    output: Float[Array, "B S C"], mask: Bool[Array, "B T S"]
) -> tuple[Float[Array, "B T half_C"], Float[Array, "B T half_C"]]:
    """The states with which both directions of an encoder end, as each target token sees them.

    Forwards that is at the last token of its source, backwards at the first. mask: the source.
    """
    first = jnp.argmax(mask, axis=-1)
    last = mask.shape[-1] - 1 - jnp.argmax(mask[..., ::-1], axis=-1)
    forward, backward = jnp.split(output, 2, axis=-1)
    return (
        jnp.take_along_axis(forward, last[..., None], axis=1),
        jnp.take_along_axis(backward, first[..., None], axis=1),
    )


def _packed(states: Sequence[State]) -> Float[Array, "L B 1 W"]:
    """The states of all layers, the arrays of each side by side."""
    return jnp.stack([jnp.concatenate(state, axis=-1)[:, None] for state in states])


def _unpacked(hidden: Float[Array, "B L 1 W"], width: int) -> list[State]:
    """What `_packed` was given, of states of this width. No gradient enters them."""
    arrays = jnp.split(jax.lax.stop_gradient(hidden), hidden.shape[-1] // width, axis=-1)
    return [tuple(array[:, layer, 0] for array in arrays) for layer in range(hidden.shape[1])]


def _with(x: Float[Array, "*B D"], contexts: Float[Array, "*B C"] | None) -> Float[Array, "*B E"]:
    """Both side by side."""
    return x if contexts is None else jnp.concatenate([x, contexts.astype(x.dtype)], axis=-1)


def recurrent_stacks(config: RecurrentConfig) -> dict[Stack, Encoder | Decoder]:
    """The stacks of a model (see `stacks.Stacks`), which drop entries of embeddings alike."""
    entry = Dropout(config.embedding_dropout_rate, name="dropout")
    kinds = {"encoder": Encoder, "decoder": Decoder}
    names = ARCHITECTURES[config.architecture]
    return {name: kinds[name](config, entry, name=name) for name in names}


def draw_parameters(model: Any, key: Key[Array, ""], batch: Batch) -> Params:
    """The parameters that a model starts from, boxed, as its modules draw them.

    With `config.init_scale` all of them, biases included, are uniform within it (Zaremba et al.
    2014, 1409.2329), each by the key and its path alone.
    """
    params = model.init(key, batch, deterministic=True)["params"]
    scale = model.config.init_scale

    def uniform(path, box):
        subkey = jax.random.fold_in(key, zlib.crc32(parameter_name(path).encode()))
        draw = jax.random.uniform(subkey, box.value.shape, minval=-scale, maxval=scale)
        return box.replace_boxed(draw)

    if scale is None:
        return params
    return jax.tree.map_with_path(uniform, params, is_leaf=lambda leaf: isinstance(leaf, Boxed))
