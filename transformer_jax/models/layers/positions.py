"""How a model tells where a token stands: vectors added to embeddings, queries and keys turned, or
what is added to their products.

Positions count within a packed example.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers import rotary_scalings
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.embeddings import look_up
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.process.machine import check_constant


class Rotation(NamedTuple):
    """Cosine and sine of the angle of each position and pair of channels."""

    cos: Float[Array, "B T half_R"]
    sin: Float[Array, "B T half_R"]


def sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """sin(t / 10000^(2i/D)) in even and the cosine in odd channels (Vaswani et al. 2017, 3.5)."""
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    table = np.empty((length, d_model), np.float32)
    np.sin(angle, out=table[:, ::2])
    np.cos(angle, out=table[:, 1::2])
    return table


# (the module of positions, grid, D) -> the vectors that are added by the places of patches, zeros
# where there is none; the module has their parameters, if any.
Places = Callable[[nn.Module, Int[Array, "B T 4"], int], Float[Array, "B T D"]]
_SIDE = 50  # rows, and columns, of "learned_2d" (Carion et al. 2020, code)


def sincos_2d(module: nn.Module, grid: Int[Array, "B T 4"], d_model: int) -> Float[Array, "B T D"]:
    """[sin xw, cos xw, sin yw, cos yw], w_i = 10000^(-i / (D/4 - 1)), of column x and row y.

    That of Beyer et al. 2022 (2205.01580), from their code.
    """
    count = d_model // 4
    frequencies = 10000.0 ** (-jnp.arange(count) / max(count - 1, 1))
    angles = grid[..., 1::-1, None] * frequencies[None, None, None]
    return _of_patches(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1), grid)


def sine_2d(module: nn.Module, grid: Int[Array, "B T 4"], d_model: int) -> Float[Array, "B T D"]:
    """Sine and cosine in turn of y w and then of x w, w_i = 10000^(-4 floor(i/2) / D), i < D/2.

    Rows y and columns x count from 1, as shares of all times 2 pi (Carion et al. 2020, code).
    """
    count = d_model // 4
    frequencies = 10000.0 ** (-2 * jnp.arange(count) / (d_model // 2))
    shares = 2 * math.pi * (grid[..., :2] + 1) / (grid[..., 2:] + 1e-6)
    angles = shares[..., None] * frequencies[None, None, None]
    return _of_patches(jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1), grid)


def learned_2d(module: nn.Module, grid: Int[Array, "B T 4"], d_model: int) -> Float[Array, "B T D"]:
    """Half a vector of each column, then one of each row, drawn from U(0, 1) (Carion et al. 2020).

    The order of the halves is that of their code.
    """
    init, size = nn.initializers.uniform(1.0), (_SIDE, d_model // 2)
    axes = ("positions", "embed")
    halves = [
        look_up(parameter(module, name, init, size, axes, matrix=(1, 1), role="embedding"), places)
        for name, places in (("columns", grid[..., 1]), ("rows", grid[..., 0]))
    ]
    return _of_patches(jnp.stack(halves, axis=-2), grid)


def _of_patches(
    halves: Float[Array, "B T 2 *half"], grid: Int[Array, "B T 4"]
) -> Float[Array, "B T D"]:
    """Both halves of each patch's vector, and zeros where there is no patch."""
    return jnp.where(grid[..., 2:3] > 0, halves.reshape(*grid.shape[:2], -1), 0.0)


def rotation(
    positions: Int[Array, "B T"],
    channels: int,
    base: float = 10000.0,
    scaling: tuple[str, ...] = (),
) -> Rotation:
    """Angles t / base^(2i/R) of position t and pair i (Su et al. 2021, 2104.09864, eq. 15).

    channels: R, those of a head that turn. scaling: of the frequencies, as
    `rotary_scalings.read` has it.
    """
    frequencies, gain = base ** (-jnp.arange(0, channels, 2) / channels), 1.0
    if scaling:
        row, numbers = rotary_scalings.read(scaling)
        scaled, gain = row.scaled(base ** (-np.arange(0, channels, 2) / channels), base, **numbers)
        frequencies = jnp.asarray(scaled, jnp.float32)
    angles = positions[..., None] * frequencies[None, None]
    return Rotation(times(gain, jnp.cos(angles)), times(gain, jnp.sin(angles)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionKind:
    """One row.

    Attributes:
      vectors: (length, D) -> the constant vectors that are added to embeddings.
      places: the vectors that are added to those of patches, by row and column.
      most: rows, and columns, of patches at most; None: any number.
      learned: whether trained vectors are added, from a table that bounds the length of rows.
      bound: the setting that may bound the length of rows.
      rotation: (positions, channels, base, scaling) -> what turns queries and keys.
      bias: (config, causal, name=) -> the module of what self-attention adds to its scores, by
        head and distance; it is called with so many queries, so many keys, and the place of the
        first query among these. `causal`: whether nobody sees keys after a query.
      by_layer: whether each layer has such a module of its own.
      distances: whether that is made of products, with vectors of the distances (`Distances`).
      even: the size that has to be even, or a multiple of `of`.
    """

    vectors: Callable[[int, int], Float[np.ndarray, "T D"]] | None = None
    places: Places | None = None
    most: int | None = None
    learned: bool = False
    bound: str | None = None
    rotation: Callable[..., Rotation] | None = None
    bias: Callable[..., nn.Module] | None = None
    by_layer: bool = False
    distances: bool = False
    even: Literal["d_model", "head_dim"] | None = None
    of: int = 2

    @property
    def added(self) -> bool:
        """Whether there is a vector for each position."""
        return bool(self.vectors or self.places or self.learned)


class Positions(nn.Module):
    """Adds a vector for each position where there is one, then drops entries of the sum.

    With `positions_in="attention"` the vectors are returned instead, for every attention to add.

    Attributes:
      config: a `TransformerConfig`.
      normed: whether the sum is normalised before entries are dropped (Devlin et al. 2019, in
        code).
    """

    config: Any
    normed: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        grid: Int[Array, "B T 4"] | None = None,
        *,
        length: int,
        deterministic: bool,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"] | None]:
        """What enters the stack, and the vectors that attention is to add.

        length: a bound of the positions, which is the row's or the cache's length. Raises
        ValueError where that is more than the rows of a learned table.
        """
        config, vectors = self.config, self._vectors(positions, grid, length, x.shape[-1])
        if vectors is not None and config.positions_in == "stream":
            x, vectors = x + vectors, None
        if self.normed:
            x = Norm(config.norm, config.norm_epsilon, name="norm")(x)
        dropout = Dropout(config.embedding_dropout_rate, name="dropout")
        return dropout(x, deterministic=deterministic), vectors

    def _vectors(
        self,
        positions: Int[Array, "B T"],
        grid: Int[Array, "B T 4"] | None,
        length: int,
        d_model: int,
    ) -> Float[Array, "B T D"] | None:
        config, row = self.config, POSITIONS[self.config.positions]
        if row.learned:
            if length > config.max_length:
                raise ValueError(
                    f"a row of {length} tokens is longer than the {config.max_length} learned "
                    "positions: raise model.max_length or shorten the rows"
                )
            init, size = nn.initializers.normal(0.02), (config.max_length, d_model)
            axes = ("positions", "embed")
            table = parameter(self, "table", init, size, axes, matrix=(1, 1), role="embedding")
            return look_up(table, positions)
        if row.vectors:
            check_constant(
                "the table of positions",
                4 * length * d_model,
                f"Lower model.d_model={d_model}, or the lengths in data that make rows of "
                f"{length} tokens",
            )
            return jnp.asarray(row.vectors(length, d_model))[positions]
        if row.places:
            assert grid is not None  # the config has patches
            return row.places(self, grid, d_model)
        return None


def rotate(x: Float[Array, "B T H K"], rotation: Rotation | None) -> Float[Array, "B T H K"]:
    """Turns each pair of the first R channels (i, i + R/2), in float32; None turns nothing.

    So the product of a query and a key depends on the difference of their positions alone; an
    additive score of theirs does not. The paper pairs neighbouring channels, which is the same up
    to the order of the channels.
    """
    if rotation is None:
        return x
    channels = 2 * rotation.cos.shape[-1]
    if channels < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :channels], rotation), x[..., channels:]], axis=-1)
    cos, sin = (part[:, :, None] for part in rotation)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


# Of T5 (Raffel et al. 2020, 1910.10683, section 2.1, and its code), of distances in both directions
# or in one; those from the largest on share a bucket.
_BUCKETS = 32
_LARGEST = 128


def buckets(distances: Int[Array, "*n"], *, bidirectional: bool) -> Int[Array, "*n"]:
    """The bucket of each distance, a key's position less its query's.

    Half of a direction's buckets hold one distance each, the other half as many as make them even
    on a logarithmic scale. Of one direction, that of keys before their query, the other ones share
    bucket 0 with distance 0.
    """
    number = _BUCKETS // 2 if bidirectional else _BUCKETS
    exact = number // 2
    # On the host and in float32, as T5's, so that rounding is the same wherever it runs.
    far = np.arange(_LARGEST + 1, dtype=np.float32).clip(1)
    scale = np.float32((number - exact) / math.log(_LARGEST / exact))
    steps = np.minimum(exact + (np.log(far / exact) * scale).astype(np.int32), number - 1)
    table = np.where(far < exact, np.arange(_LARGEST + 1), steps)
    back = jnp.abs(distances) if bidirectional else jnp.maximum(-distances, 0)
    after = number * (distances > 0) if bidirectional else 0
    return jnp.asarray(table)[jnp.minimum(back, _LARGEST)] + after


class RelativeBias(nn.Module):
    """What is added to the logits of self-attention in every layer of a stack, by T5's buckets.

    It is drawn as Hugging Face's T5 draws it, at the base width.
    """

    config: Any
    causal: bool

    @nn.compact
    def __call__(
        self, queries: int, keys: int, first: int | Int[Array, ""] = 0
    ) -> Float[Array, "1 H T S"]:
        """See `PositionKind.bias`.

        The tokens of an example stand side by side, so that the distance of two of them is that of
        their places in the row.
        """
        config = self.config
        init, size = nn.initializers.normal(config.base_d_model**-0.5), (_BUCKETS, config.num_heads)
        table = parameter(self, "table", init, size, ("positions", "heads"), role="vector")
        distances = jnp.arange(queries + keys - 1) - (queries - 1) - first
        bias = table[buckets(distances, bidirectional=not self.causal)].T
        bias = skew(jnp.broadcast_to(bias[:, None], (len(bias), queries, queries + keys - 1)))
        return constrain(bias[None], None, "heads", "length")


class Distances(NamedTuple):
    """What a query and a key have to do with their distance (Dai et al. 2019, section 3.3).

    The score is (q + u) k + (q + v) (W R), where each layer has a W of its own.

    Attributes:
      vectors: R of each distance that a query may have to a key, a key's place less its query's,
        from the largest one backwards on.
      content: u of each head.
      distance: v of each head.
    """

    vectors: Float[Array, "N D"]
    content: Float[Array, "H K"]
    distance: Float[Array, "H K"]


class DistanceVectors(nn.Module):
    """The parts of `Distances` that all layers share, u and v drawn from N(0, 0.02^2)."""

    config: Any
    causal: bool

    @nn.compact
    def __call__(self, queries: int, keys: int, first: int | Int[Array, ""] = 0) -> Distances:
        """See `PositionKind.bias`. R is concat[sin, cos], as in the paper's code."""
        config, init = self.config, nn.initializers.normal(0.02)
        size, d_model = (config.num_heads, config.head_dim), config.d_model
        content, distance = (
            parameter(self, name, init, size, ("heads", "head_dim"), role="vector")
            for name in ("u", "v")
        )
        count = queries + keys - 1
        if self.causal and isinstance(first, int):
            count = min(count, queries + first)  # none after the query
        back = queries - 1 + first - jnp.arange(count)
        if config.max_distance is not None:
            back = jnp.clip(back, -config.max_distance, config.max_distance)
        angles = back[:, None] / 10000.0 ** (jnp.arange(0, d_model, 2) / d_model)[None]
        vectors = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return Distances(vectors, content, distance)


def skew(x: Float[Array, "*H T N"]) -> Float[Array, "*H T S"]:
    """From what each query has for each distance to what it has for each key, S = N - T + 1.

    The first of T queries has the first key at the distance number T - 1, the second one at T - 2
    (Dai et al. 2019, 1901.02860, appendix B): rows that are one longer than they are read shift by
    one from each to the next. No index is computed, and none in the backward pass.
    """
    *heads, queries, distances = x.shape
    longer = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*heads, -1)
    shifted = longer[..., : queries * distances].reshape(x.shape)
    return shifted[..., queries - 1 :]


POSITIONS = {
    "sinusoidal": PositionKind(vectors=sinusoids, even="d_model"),
    "learned": PositionKind(learned=True, bound="max_length"),
    "sincos_2d": PositionKind(places=sincos_2d, even="d_model", of=4),
    "sine_2d": PositionKind(places=sine_2d, even="d_model", of=4),
    "learned_2d": PositionKind(places=learned_2d, most=_SIDE, even="d_model"),
    "rotary": PositionKind(rotation=rotation, bound="rotary_scaling", even="head_dim"),
    "relative": PositionKind(bias=RelativeBias),
    "relative_by_layer": PositionKind(bias=RelativeBias, by_layer=True),
    "distance": PositionKind(bias=DistanceVectors, distances=True, even="d_model"),
}
# Where the vectors of positions are added: to what enters a stack, or, in every attention, to what
# its queries and keys are made from.
POSITIONS_IN = ("stream", "attention")
