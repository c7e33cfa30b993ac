"""The stacks of a Transformer: whole rows in one scan over depth, and new tokens layer by layer."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.family import Params, parameter_name
from transformer_jax.models.layers.attention import Offsets, Slots
from transformer_jax.models.layers.kernels import KERNELS
from transformer_jax.models.layers.masks import Segments
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.positions import POSITIONS, Positions, Rotation
from transformer_jax.models.layers.product import kernel_first
from transformer_jax.models.layers.stack import stack as repeated
from transformer_jax.models.stacks import Cache, Past, Place, Prompts, Vectors
from transformer_jax.models.transformer.blocks import Block, NewTokens, WholeRows
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    depth,
    pattern,
    scheme,
    side_of,
    stacks,
    tells_set,
)
from transformer_jax.models.transformer.patterns import Base, stacked_rotation
from transformer_jax.models.transformer.residual import Carry, Scales, finish
from transformer_jax.models.transformer.schemes import Stack


class Context(NamedTuple):
    """What decoding keeps: parameters of each layer, and its view of the encoder's output, if any.

    source_mask: which tokens of the encoder's output a text has.
    """

    layers: tuple[Params, ...]
    sources: tuple[Slots | None, ...]
    source_mask: Bool[Array, "B S"] | None


class Layers:
    """One stack: what stands below its layers, these, and the norm after them.

    It is made in the `setup` of a model, and is no module itself: its parts are modules of that
    model, whose parameters are "encoder/...", "encoder_bias/...", "encoder_norm/..." and
    "source_positions/..." or "positions/...". Of a set none stands anywhere but by what is given.
    """

    def __init__(self, config: TransformerConfig, stack: Stack):
        row = scheme(config, stack)
        self.config, self.row = config, row
        self.stack: Stack = stack
        normed, name = config.embedding_norm or row.embedding_norm, side_of(config, stack)
        self.ordered = not tells_set(config, stack)
        self.pattern = pattern(config, stack)
        self.positions = None
        if self.ordered:
            self.positions = Positions(config, normed, name=f"{name}positions")
        self.bias: Callable[..., Any] = lambda queries, keys, first: None
        kind = POSITIONS[config.positions]
        if kind.bias and self.ordered and not kind.by_layer:
            self.bias = kind.bias(config, stack == "decoder", name=f"{stack}_bias")
        layers = repeated(Block, depth(config, stack).layers, config.remat)
        self.layers = layers(config, stack, name=stack)
        self.norm = None
        # A set is told after each layer, by vectors of one norm (Carion et al. 2020, code).
        if row.ends_in_norm or not self.ordered:
            self.norm = Norm(config.norm, config.norm_epsilon, name=f"{stack}_norm")

    def __call__(
        self,
        inputs: Vectors,
        encoded: Vectors | None = None,
        past: Past | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Vectors, Any]:
        """See `stacks.Layers`."""
        x, segments, positions, grid, offsets = inputs
        length, keys, hidden = segments.shape[1], segments, None
        if past is not None:
            keys = jnp.concatenate([past.segments, segments], axis=1)
            hidden = jnp.swapaxes(past.hidden, 0, 1)
        if self.positions is not None:
            x, offsets = self.positions(
                x, positions, grid, length=length, deterministic=deterministic
            )
        cross_offsets = None
        if encoded is not None and encoded.offsets is not None and offsets is not None:
            cross_offsets = Offsets(offsets, encoded.offsets)
        shared = WholeRows(
            mask=self._own_mask(segments, keys),
            rotation=stacked_rotation([*self._rotations(positions).values()]),
            bias=self.bias(length, keys.shape[1], keys.shape[1] - length),
            offsets=None if offsets is None else Offsets(offsets, offsets),
            real=segments > 0,
            deterministic=deterministic,
            encoded=encoded.x if encoded else None,
            cross_mask=self._mask(Segments(segments, encoded.segments, False)) if encoded else None,
            cross_offsets=cross_offsets,
        )
        layers = Scales.of(self.config, self.stack), self.pattern.arrays(), hidden
        start = Carry.start(self.config, self.stack, x)
        carry, (hidden, after) = self.layers(start, layers, shared)
        if after is None:
            x = finish(self.row, self.norm, carry)
        else:
            hidden = finish(self.row, self.norm, after)
            x = hidden[-1]
        return inputs._replace(x=x, offsets=offsets), hidden

    def start(
        self, rows: int, room: int, encoded: Vectors | None, prompt: Vectors | None
    ) -> tuple[Context, Cache]:
        """See `stacks.Layers`."""
        stacked = self.layers.variables["params"]
        layers = tuple(
            self._layer(stacked, number) for number in range(self.config.num_decoder_layers)
        )
        sources, mask = (None,) * len(layers), None
        if encoded is not None:
            sources = tuple(self._method(layer, "context")(encoded.x) for layer in layers)
            mask = encoded.segments > 0
        cache = Cache(tuple(_empty(self.config, rows, room) for _ in layers))
        context = Context(layers, sources, mask)
        if prompt is not None:
            prompts = Prompts(-prompt.positions[:, 0], jnp.int32(prompt.x.shape[1]))
            _, cache = self.step(prompt.x, context, cache, Place(jnp.int32(0), prompts))
        return context, cache

    def step(
        self, x: Float[Array, "N T D"], context: Context, cache: Cache, place: Place
    ) -> tuple[Float[Array, "N T D"], Cache]:
        """See `stacks.Layers`."""
        config, (rows, count, _) = self.config, x.shape
        length = cache.layers[0].keys.shape[3]
        positions = place.positions(rows, count)
        # Slots outnumber learned positions where a short prompt stands in a wide row.
        bound = length if place.prompts is None else min(length, config.longest_row or length)
        assert self.positions is not None  # a set is not told step by step
        x, _ = self.positions(x, positions, length=bound, deterministic=True)
        masks, hypotheses = self._masks(place, rows, count, length), 1
        if place.ancestors is not None:
            hypotheses, mask = place.ancestors.shape[1], _holder_mask(place.holders(length))
            masks = {windowed: slots & mask for windowed, slots in masks.items()}
        rotations = self._rotations(positions)
        new = functools.partial(
            NewTokens,
            slot=place.slot,
            bias=self.bias(count, length, place.slot),
            hypotheses=hypotheses,
            source_mask=context.source_mask,
        )
        carry, scales = Carry.start(config, self.stack, x), Scales.of(config, self.stack)
        written = []
        layers = zip(context.layers, context.sources, self.pattern.kinds(), strict=True)
        for number, (layer, source, (windowed, base)) in enumerate(layers):
            layer_scales = jax.tree.map(lambda leaf, number=number: leaf[number], scales)
            tokens = new(mask=masks[windowed], rotation=rotations[base])
            advance = self._method(layer, "step")
            carry, slots = advance(carry, layer_scales, cache.layers[number], source, tokens)
            written.append(slots)
        return finish(self.row, self.norm, carry), Cache(tuple(written))

    def _mask(self, segments: Segments) -> Bool[Array, "B T S"] | Segments:
        """Which keys each query sees, as the attention kernel reads it."""
        kernel = KERNELS[self.config.attention_kernel]
        return segments if kernel.reads_segments else segments.pairs()

    def _own_mask(
        self, queries: Int[Array, "B T"], keys: Int[Array, "B S"]
    ) -> Bool[Array, "B T S"] | Segments:
        """The same of self-attention; of the segments, where layers make masks of several kinds."""
        causal, windows = self.stack == "decoder" and self.ordered, self.pattern.windows
        window = self.config.window if True in windows else None
        segments = Segments(queries, keys, causal, window)
        return self._mask(segments) if len(windows) == 1 else segments

    def _masks(
        self, place: Place, rows: int, count: int, slots: int
    ) -> dict[bool, Bool[Array, "#N T S"]]:
        """Which slots so many new tokens see, in layers with a window and in those without."""
        context = None if place.prompts is None else self.config.context_length

        def mask(windowed: bool) -> Bool[Array, "#N T S"]:
            bounds = context, self.config.window if windowed else None
            return place.mask(rows, count, slots, min(filter(None, bounds), default=None))

        return {windowed: mask(windowed) for windowed in self.pattern.windows}

    def _rotations(self, positions: Int[Array, "B T"]) -> dict[Base | None, Rotation | None]:
        """What turns queries and keys, if anything, of all kinds of layers."""
        turn, config = POSITIONS[self.config.positions].rotation, self.config

        def rotation(base: Base | None) -> Rotation | None:
            if turn is None or base is None or not self.ordered:
                return None
            scaling = config.rotary_scaling if base == "rotary_base" else ()
            return turn(positions, config.rotary_channels, getattr(config, base), scaling)

        return {base: rotation(base) for base in self.pattern.rotations}

    def _layer(self, stacked: Params, number: int) -> Params:
        """The parameters of one layer, apart, matrices in the compute dtype with inputs last.

        A scan over depth would copy each layer's cache out of one array and back into it at each
        step; and what a step takes out of stacked parameters would be taken out again at each step.
        """

        def of_layer(path: Any, leaf: Array) -> Array:
            # Vectors (two axes with that of the layers) may be read in float32, unlike products;
            # so are tables of biases.
            product = leaf.ndim > 2 and parameter_name(path).rpartition("/")[2] != "table"
            return leaf[number].astype(self.config.compute_dtype) if product else leaf[number]

        return _inputs_last(jax.tree_util.tree_map_with_path(of_layer, stacked))

    def _method(self, layer: Params, name: str) -> Callable[..., Any]:
        block = Block(self.config, self.stack, kernel_first, parent=None)
        variables = {"params": _inputs_last(layer, back=True)}
        return lambda *arguments: block.apply(variables, *arguments, method=name)


def transformer_stacks(config: TransformerConfig) -> dict[Stack, Layers]:
    """The stacks of a model (see `stacks.Stacks`)."""
    return {stack: Layers(config, stack) for stack in stacks(config)}


def _empty(config: TransformerConfig, rows: int, room: int) -> Slots:
    """So many slots of one layer that hold nothing."""

    def zeros(*size: int) -> Array:
        return jnp.zeros((rows, config.kv_heads, *size), config.compute_dtype)

    return Slots(zeros(config.head_dim, room), zeros(room, config.head_dim))


def _holder_mask(holders: Int[Array, "B J S"]) -> Bool[Array, "N J S"]:
    """Whether a row holds the slot of each hypothesis of its text."""
    rows = jnp.arange(holders.shape[1])[None, :, None, None]
    return (holders[:, None] == rows).reshape(-1, *holders.shape[1:])


def _inputs_last(layer: Params, *, back: bool = False) -> Params:
    """The kernels of a layer with their inputs as last axes; or back, as the layer knows them."""

    def moved(path: tuple[Any, ...], leaf: Array) -> Array:
        inputs = 2 if path[-1].key == "output" else min(1, leaf.ndim - 1)
        first, last = range(inputs), range(-inputs, 0)
        return jnp.moveaxis(leaf, last, first) if back else jnp.moveaxis(leaf, first, last)

    return jax.tree_util.tree_map_with_path(moved, layer)
