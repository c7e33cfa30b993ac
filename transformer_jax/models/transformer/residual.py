"""The residual equation, once; the rows of `schemes` fill it in.

x' = POST( s * x + c * BRANCH( f( r * PRE(x) ) ) )
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.observe import observe
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.models.layers.stack import keep
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    branch_multiplier,
    depth,
    scheme,
)
from transformer_jax.models.transformer.schemes import Formula, ResidualScheme, Stack


class Scales(NamedTuple):
    """What differs between sublayers and rides through the scan; None where nothing does.

    Arrays are (L, kinds) of a stack, (kinds,) of a layer, () of a sublayer.
    """

    skip: Any  # s
    branch: Any  # c
    read: Any  # r
    stream: Any  # a, and b
    input: Any
    normed: Any  # whether POST is there
    pre_normed: Any  # whether PRE is there

    @classmethod
    def of(cls, config: TransformerConfig, stack: Stack) -> "Scales":
        """The scales of all sublayers of a stack, (L, kinds)."""
        row, at = scheme(config, stack), depth(config, stack)

        def each(formula: Formula | None, dtype: Any = jnp.float32) -> Any:
            return formula and jnp.broadcast_to(jnp.asarray(formula(at), dtype), at.shape)

        return cls(
            skip=each(row.skip),
            branch=each(row.branch),
            read=each(row.read),
            stream=each(row.stream),
            input=each(row.input),
            normed=each(row.post_where, bool),
            pre_normed=each(row.pre_where, bool),
        )


class Carry(NamedTuple):
    """What runs through the depth.

    Attributes:
      x: the residual stream.
      omega: what Admin's profiling starts the next omega from.
      stash: what the scheme keeps besides x: the sum of all branches and the stack's input, the
        layer's input, or the stack's; None where it keeps nothing.
    """

    x: Float[Array, "B T D"]
    omega: Float[Array, ""]
    stash: Any

    @classmethod
    def start(cls, config: TransformerConfig, stack: Stack, x: Float[Array, "B T D"]) -> "Carry":
        """The bottom of a stack, where omega is 1."""
        row = scheme(config, stack)
        keeps = row.summed_branches or row.layer_shortcut or row.parallel or row.input
        return cls(x, jnp.float32(1.0), x if keeps else None)


class TrainedScale(nn.Module):
    """A trained scale, filled with one value (None: 1).

    A module of its own, so that it disturbs no draw. factor: as of `parameter`.
    """

    parameter_name: str
    size: tuple[int, ...]
    factor: bool = True

    @nn.compact
    def __call__(self, value: Float[Array, ""] | None) -> Float[Array, "*size"]:
        def fill(key, size):
            return jnp.full(size, 1.0 if value is None else value)

        axes = ("embed",) * len(self.size)
        # What is no factor sums up what the whole width says, as the gains of a head do.
        role = None if self.factor else "head_vector"
        name, size = self.parameter_name, self.size
        return parameter(self, name, fill, size, axes, factor=self.factor, role=role)


class ResidualSublayer(nn.Module):
    """The equation around one function f, which may be another module's call.

    Attributes:
      index: of the sublayer in its layer.
    """

    config: TransformerConfig
    stack: Stack
    index: int

    @nn.compact
    def __call__(
        self,
        carry: Carry,
        scales: Scales,
        f: Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]],
        real: Bool[Array, "B T"],
        *,
        deterministic: bool,
    ) -> Carry:
        """The stream after this sublayer, and the omega that the next one starts from.

        Admin's profiling (Liu et al. 2020, section 4.2, in its sequential form) runs while
        parameters are made: this sublayer's omega is what the sublayers before it measured, and
        the next is sqrt(Var[omega x] + Var[branch]) over the entries of real tokens. It stays where
        that is 0, as after the first self-attention of a decoder whose stream starts from zeros.
        """
        config, row = self.config, scheme(self.config, self.stack)
        norm = functools.partial(Norm, config.norm, config.norm_epsilon)
        scales = jax.tree.map(lambda of_layer: of_layer[self.index], scales)
        x, omega, stash = carry
        if row.stream and self.index == 0:
            x = TrainedScale("scale", (), False, name="stream_scale")(scales.stream) * x
        if row.input and self.index == 0:
            x = x + TrainedScale("scale", (), False, name="input_scale")(scales.input) * stash
        if (row.layer_shortcut or row.parallel) and self.index == 0:
            stash = x

        read = stash if row.parallel else x
        if row.pre_norm:
            normed = norm(name="pre_norm")(read)
            there = scales.pre_normed
            read = normed if there is None else jnp.where(there, normed, read)
        branch = f(_scaled(scales.read, read))
        branch = constrain(branch, "batch", "length")
        if row.branch_norm:
            branch = norm(name="branch_norm")(branch)
        dropout = Dropout(config.dropout_rate, name="dropout")
        branch = dropout(branch, deterministic=deterministic)
        scale = scales.branch
        if row.trained_branch:
            size = x.shape[-1:] if row.trained_branch == "vector" else ()
            scale = TrainedScale("scale", size, name="branch_scale")(scale)
        branch = times(branch_multiplier(config, self.stack), _scaled(scale, branch))
        skip = omega if row.profiled else scales.skip
        if row.trained_skip:
            skip = TrainedScale("omega", x.shape[-1:], name="shortcut")(skip)
        shortcut = _scaled(skip, x)
        if row.profiled and self.is_mutable_collection("params"):
            total = variance(shortcut, real) + variance(branch, real)
            omega = jnp.where(total > 0, jnp.sqrt(total), omega)
        if row.layer_shortcut and self.index == len(depth(config, self.stack).kinds) - 1:
            shortcut = shortcut + stash
        out = keep(shortcut + branch, "stream")
        if row.post_norm:
            normed = norm(name="post_norm")(out)
            out = normed if scales.normed is None else jnp.where(scales.normed, normed, out)
        if row.summed_branches:
            stash = stash + branch
        out = constrain(out, "batch", "length")
        observe(self, input=x, branch=branch, output=out)
        return Carry(self.perturb("output", out), omega, stash)


def finish(
    row: ResidualScheme, norm: Callable[[Array], Array] | None, carry: Carry
) -> Float[Array, "B T D"]:
    """What leaves a stack: its stream, through its last norm if there is one.

    Of a scheme that sums its branches, the stream and the norm of their sum.

    norm: the stack's last one; None: it has none.
    """
    if norm is None:
        return carry.x
    return carry.x + norm(carry.stash) if row.summed_branches else norm(carry.x)


def _scaled(scale: Float[Array, "*size"] | None, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    return x if scale is None else jnp.broadcast_to(scale, x.shape) * x


def variance(x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Variance over all entries of real tokens, in float32 and two passes."""
    count = jnp.sum(real) * x.shape[-1]
    mean = jnp.sum(x, where=real[..., None], dtype=jnp.float32) / count
    return jnp.sum(jnp.square(x - mean), where=real[..., None], dtype=jnp.float32) / count
