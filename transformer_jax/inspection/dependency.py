"""How much each sublayer's output consists of each branch (Liu et al. 2020, 2004.08249).

Every sublayer's output x_i is a sum of components: the stack's input a_0 and the branches a_1 to
a_i, each scaled by the skips and norms on its way. All functions take the model's config and
parameters, the name of a stack, and what a pass showed of this stack.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.inspection.observed import Observed, in_order, variances
from transformer_jax.models.family import Params
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme
from transformer_jax.models.transformer.residual import Scales, variance
from transformer_jax.models.transformer.schemes import Stack


def divides(config: TransformerConfig, stack: Stack) -> bool:
    """Whether POST, where there is one, divides all components alike: else they have no shares."""
    return not (scheme(config, stack).post_norm and NORMS[config.norm].scalars)


def dependency(
    config: TransformerConfig, params: Params, stack: Stack, activations: Observed
) -> Float[Array, "n n+1"]:
    """beta_ij = std of component j / std of x_i, over all entries of real tokens.

    Row i - 1 holds beta_ij for j = 0 .. n; 0 for j > i. Squares of a row sum to 1 where the
    components are uncorrelated, which they are nearly.

    In ResiDual this follows the stream x, not the sum of branches next to it. Time and memory grow
    with n^2 and n; where the diagonal is enough, `own_dependency` is cheap.

    Raises:
      ValueError: POST does not divide (`divides`), or layers read the stack's input again.
    """
    row, at = scheme(config, stack), depth(config, stack)
    if row.stream or row.input:
        name = f"model.{stack}_residual={getattr(config, f'{stack}_residual')!r}"
        raise ValueError(f"{name} mixes the stack's input into each layer, which no component is")
    n, kinds = at.sublayers, len(at.kinds)

    def layer(parts, leaves):
        bottom, betas = parts, []
        for index in range(kinds):
            number, branch, sublayer = jax.tree.map(lambda leaf, at=index: leaf[at], leaves)
            parts = sublayer.skip[None, None, None] * parts
            if row.layer_shortcut and index == kinds - 1:
                parts = parts + bottom
            parts = parts.at[number].add(branch)
            if row.post_norm:
                whole = jnp.sum(parts, axis=0, keepdims=True)
                parts = _post_norm(config, sublayer, parts, whole)
                bias = jnp.where(sublayer.normed, sublayer.bias, 0.0)
                parts = parts.at[-1].add(bias[None, None])
            whole = variance(jnp.sum(parts, axis=0), activations.real)
            betas.append(jnp.sqrt(variances(parts[:-1], activations.real) / whole))
        return parts, jnp.stack(betas)

    sublayers = (jnp.arange(1, n + 1), activations.branches, _sublayers(config, params, stack))
    layers = jax.tree.map(lambda leaf: leaf.reshape(-1, kinds, *leaf.shape[1:]), sublayers)
    # a_0 .. a_n, and what the norms' biases add
    start = jnp.zeros((n + 2, *activations.inputs.shape[1:])).at[0].set(activations.inputs[0])
    _, betas = jax.lax.scan(layer, start, layers)
    return betas.reshape(n, n + 1)


def own_dependency(
    config: TransformerConfig, params: Params, stack: Stack, activations: Observed
) -> Float[Array, "n"]:
    """The diagonal beta_ii of `dependency`: how much each output depends on its own branch."""
    row, kinds = scheme(config, stack), len(depth(config, stack).kinds)
    sublayers = _sublayers(config, params, stack)
    branches = activations.branches
    if row.post_norm:
        whole = sublayers.skip[:, None, None] * activations.inputs + branches
        if row.layer_shortcut:
            whole = whole.at[kinds - 1 :: kinds].add(activations.inputs[::kinds])
        branches = jax.vmap(functools.partial(_post_norm, config))(
            sublayers, branches[:, None], whole[:, None]
        )[:, 0]
    parts, whole = (variances(x, activations.real) for x in (branches, activations.outputs))
    # 0 where a decoder of sets, which starts from zeros, has added nothing yet
    return jnp.sqrt(parts / jnp.maximum(whole, jnp.finfo(whole.dtype).tiny))


def shortcut_variance(
    config: TransformerConfig, params: Params, stack: Stack, activations: Observed
) -> Float[Array, "n"]:
    """Var[s x] of each sublayer, its skip scale times its input."""
    skip = skip_scales(config, params, stack)
    return variances(skip[:, None, None] * activations.inputs, activations.real)


def skip_scales(config: TransformerConfig, params: Params, stack: Stack) -> Float[Array, "n D"]:
    """The skip scale s of each sublayer, such as Admin's omega; 1 where the scheme has none."""
    size = depth(config, stack).sublayers, config.d_model
    if scheme(config, stack).trained_skip:
        return in_order(config, stack, params, "shortcut", "omega")
    fixed = Scales.of(config, stack).skip
    skip = jnp.ones(size[:1]) if fixed is None else fixed.reshape(-1)
    return jnp.broadcast_to(skip[:, None], size)


class _Sublayers(NamedTuple):
    """What all sublayers of a stack, or one, do to the stream apart from their branches."""

    skip: Float[Array, "*n D"]  # the scale s
    normed: Bool[Array, "*n"]  # whether POST is there
    scale: Float[Array, "*n D"]  # POST's, and its bias
    bias: Float[Array, "*n D"]


def _sublayers(config: TransformerConfig, params: Params, stack: Stack) -> _Sublayers:
    row, at = scheme(config, stack), depth(config, stack)
    if not divides(config, stack):
        raise ValueError(f"model.norm={config.norm!r} after the sum divides it into no shares")

    def post_norms(name, neutral):
        if not row.post_norm or not getattr(NORMS[config.norm], name):
            return jnp.full((at.sublayers, config.d_model), neutral)
        return in_order(config, stack, params, "post_norm", name)

    normed = Scales.of(config, stack).normed
    return _Sublayers(
        skip=skip_scales(config, params, stack),
        normed=jnp.full(at.sublayers, row.post_norm) if normed is None else normed.reshape(-1),
        scale=post_norms("scale", 1.0),
        bias=post_norms("bias", 0.0),
    )


def _post_norm(
    config: TransformerConfig,
    sublayer: _Sublayers,
    parts: Float[Array, "N B T D"],
    whole: Float[Array, "1 B T D"],
) -> Float[Array, "N B T D"]:
    """What POST, without its bias, makes of each part of its input, where POST is there.

    A norm is linear but for the deviation that it divides by, which is the whole input's.
    """
    before = parts
    if NORMS[config.norm].centred:
        parts, whole = (x - jnp.mean(x, axis=-1, keepdims=True) for x in (parts, whole))
    deviation = jnp.sqrt(jnp.mean(jnp.square(whole), axis=-1, keepdims=True) + config.norm_epsilon)
    after = parts * (sublayer.scale[None, None, None] / deviation)
    return jnp.where(sublayer.normed, after, before)
