"""How much each sublayer's output consists of each branch, and what Admin's profiling measured.

Every sublayer's output x_i is a sum of components: the stack's input a_0 and the branches a_1 to
a_i, each scaled by the skips and norms on its way (Liu et al. 2020, 2004.08249).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_jax.devices.mesh import constrain
from transformer_jax.inspection import observed
from transformer_jax.inspection.observed import Observed, in_order, variances
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.transformer.config import TransformerConfig, depth, scheme
from transformer_jax.models.transformer.residual import Scales
from transformer_jax.models.transformer.schemes import Stack


def divides(config: TransformerConfig, stack: Stack) -> bool:
    """Whether POST, where there is one, divides all components alike: else they have no shares."""
    return not (scheme(config, stack).post_norm and NORMS[config.norm].scalars)


def own_dependency(
    config: TransformerConfig, params: Params, stack: Stack, activations: Observed
) -> Float[Array, "n"]:
    """beta_ii = std of component i / std of x_i: how much an output depends on its own branch."""
    row, kinds = scheme(config, stack), len(depth(config, stack).kinds)
    sublayers = skips_and_norms(config, params, stack)
    branches = activations.branches
    if row.post_norm:
        whole = sublayers.skip[:, None, None] * activations.inputs + branches
        if row.layer_shortcut:
            whole = whole.at[kinds - 1 :: kinds].add(activations.inputs[::kinds])
        branches = jax.vmap(functools.partial(post_norm, config))(
            sublayers, branches[:, None], whole[:, None]
        )[:, 0]
    parts, whole = (variances(x, activations.real) for x in (branches, activations.outputs))
    # 0 where a decoder of sets, which starts from zeros, has added nothing yet
    return jnp.sqrt(parts / jnp.maximum(whole, jnp.finfo(whole.dtype).tiny))


class SkipsAndNorms(NamedTuple):
    """What all sublayers of a stack, or one, do to the stream apart from their branches."""

    skip: Float[Array, "*n D"]  # the scale s
    normed: Bool[Array, "*n"]  # whether POST is there
    scale: Float[Array, "*n D"]  # POST's, and its bias
    bias: Float[Array, "*n D"]


def skips_and_norms(config: TransformerConfig, params: Params, stack: Stack) -> SkipsAndNorms:
    """Of all sublayers. Raises ValueError where POST does not divide (`divides`)."""
    row, at = scheme(config, stack), depth(config, stack)
    if not divides(config, stack):
        raise ValueError(f"model.norm={config.norm!r} after the sum divides it into no shares")

    def post_norms(name, neutral):
        if not row.post_norm or not getattr(NORMS[config.norm], name):
            return jnp.full((at.sublayers, config.d_model), neutral)
        return in_order(config, stack, params, "post_norm", name)

    normed = Scales.of(config, stack).normed
    return SkipsAndNorms(
        skip=_skip_scales(config, params, stack),
        normed=jnp.full(at.sublayers, row.post_norm) if normed is None else normed.reshape(-1),
        scale=post_norms("scale", 1.0),
        bias=post_norms("bias", 0.0),
    )


def post_norm(
    config: TransformerConfig,
    sublayer: SkipsAndNorms,
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


def profile(
    model: Model, params: Params, batch: Batch, key: Key[Array, ""]
) -> dict[Stack, list[dict[str, Any]]]:
    """What Admin's profiling measured, for every sublayer of the stacks that it fills in.

    Args:
      params, batch, key: the initial parameters, and what `initialise` drew them from.

    Returns:
      For each stack one row a sublayer: its number "sublayer" and its "layer", both from 1, its
      "kind", "omega", "shortcut_variance" and "branch_variance". The next omega is the root of the
      sum of the two variances.
    """
    config = model.config
    names = ("omega", "shortcut_variance", "branch_variance")
    _, dropout = jax.random.split(key)

    def measure(params: Params, batch: Batch) -> dict[Stack, dict[str, Float[Array, "n"]]]:
        measured = {}
        for stack, activations in observed.observe(model, params, batch, dropout)[1].items():
            if scheme(config, stack).profiled:
                skip = _skip_scales(config, params, stack)
                shortcut = variances(skip[:, None, None] * activations.inputs, activations.real)
                values = jnp.mean(skip, axis=-1), shortcut, observed.branch_variance(activations)
                measured[stack] = dict(zip(names, values, strict=True))
        return jax.tree.map(constrain, measured)

    return {
        stack: [
            {"sublayer": number + 1, "layer": layer + 1, "kind": kind}
            | {name: float(values[name][number]) for name in names}
            for number, (layer, kind) in enumerate(observed.sublayers(config, stack))
        ]
        for stack, values in jax.device_get(jax.jit(measure)(params, batch)).items()
    }


def _skip_scales(config: TransformerConfig, params: Params, stack: Stack) -> Float[Array, "n D"]:
    """The skip scale s of each sublayer, such as Admin's omega; 1 where the scheme has none."""
    size = depth(config, stack).sublayers, config.d_model
    if scheme(config, stack).trained_skip:
        return in_order(config, stack, params, "shortcut", "omega")
    fixed = Scales.of(config, stack).skip
    skip = jnp.ones(size[:1]) if fixed is None else fixed.reshape(-1)
    return jnp.broadcast_to(skip[:, None], size)
