"""What parameters start from: the draws of the modules, scaled by scheme and parameterisation."""

import fnmatch
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from transformer_jax.models.family import Batch, Params
from transformer_jax.models.layers.feed_forward import ACTIVATIONS
from transformer_jax.models.layers.parameter import Boxed
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    depth,
    ratios,
    scheme,
    stacks,
)
from transformer_jax.models.transformer.draws import factor
from transformer_jax.models.transformer.parameterizations import PARAMETERIZATIONS, share
from transformer_jax.models.transformer.schemes import Stack


def initialise(model: Any, key: Key[Array, ""], batch: Batch) -> Params:
    """Draws the model's parameters, boxed with their logical axes.

    The draws are those of `model.init` in training mode, on which the gains of residual schemes, of
    `draws` and of a parameterisation are multiplied: so all share the draw of every parameter that
    they have in common. Admin's omegas are what `batch` says then.
    """
    params, dropout = jax.random.split(key)
    rngs = {"params": params, "dropout": dropout}
    config, row = model.config, PARAMETERIZATIONS[model.config.parameterization]
    gated = ACTIVATIONS[config.activation].gated
    draws = model.init(rngs, batch, deterministic=False, mutable="params")["params"]
    factors = []

    def finished(path, draw):
        keys = tuple(entry.key for entry in path)
        drawn = factor(config.init, keys, draw, config.d_model, gated=gated)
        gains = [gain for gain in (draw_gain(config, keys), drawn) if gain is not None]
        if row is not None:
            stack: Stack | None = next((name for name in stacks(config) if name == keys[0]), None)
            scaling = share(row, draw, ratios(config, stack))
            draw = draw.replace(share=scaling)
            if scaling.draw != 1.0:
                gains.append(np.asarray(scaling.draw, np.float32))
        if not gains:
            return draw
        factors.extend(gains)
        values = draw.unbox()
        gain = jnp.reshape(math.prod(gains), (-1,) + (1,) * (values.ndim - 1))
        return draw.replace_boxed(gain * values)

    result = jax.tree_util.tree_map_with_path(
        finished, draws, is_leaf=lambda leaf: isinstance(leaf, Boxed)
    )
    if not (factors and config.profiled):
        return result
    # What was measured is of draws before they were scaled: measured anew where it is left out.
    _, measured = model.apply(
        {"params": _without_omegas(result)}, batch, deterministic=False, rngs=rngs, mutable="params"
    )
    return measured["params"]


def draw_gain(config: TransformerConfig, path: tuple[str, ...]) -> Float[np.ndarray, "*L"] | None:
    """The factor on the draw of the parameter at a path, as ("encoder", "feed_forward", "up").

    One for the whole token table, and one for all layers or each of them of a stacked kernel; None
    where it is 1.
    """
    if path[-1] == "table" and path[0].endswith("embedding"):
        stack = "decoder" if path[0] == "target_embedding" else stacks(config)[0]
        formula = scheme(config, stack).embedding_gain
        return np.asarray(formula(depth(config, stack)), np.float32) if formula else None
    for stack in stacks(config):
        row, at = scheme(config, stack), depth(config, stack)
        if path[0] == stack and row.gain is not None:
            kind, name = path[1], "/".join(path[1:])
            if any(fnmatch.fnmatchcase(name, glob) for glob in row.gained):
                gain = np.asarray(row.gain(at), np.float32)
                return (
                    np.broadcast_to(gain, at.shape)[:, at.kinds.index(kind)] if gain.ndim else gain
                )
    return None


def _without_omegas(tree: PyTree) -> PyTree:
    """Parameters without those of Admin's shortcuts."""
    return {
        key: _without_omegas(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if key != "shortcut"
    }
