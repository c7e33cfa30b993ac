"""Admin's omega taken out of a trained model, whose function stays what it was."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.models.family import Params
from transformer_jax.models.layers.embeddings import TIED_EMBEDDINGS
from transformer_jax.models.layers.heads import HEADS
from transformer_jax.models.layers.norm import NORMS
from transformer_jax.models.layers.positions import POSITIONS
from transformer_jax.models.transformer.config import (
    TransformerConfig,
    depth,
    scheme,
    side_of,
    stacks,
)
from transformer_jax.models.transformer.schemes import Kind, Stack

# The kernels that read a sublayer's input: cross-attention's keys and values read the encoder's
# output.
_READERS: dict[Kind, tuple[str, ...]] = {
    "self_attention": ("query", "key", "value", "gate"),
    "cross_attention": ("query", "gate"),
    "feed_forward": ("up", "gate"),
}


def fold(config: TransformerConfig, params: Params) -> tuple[TransformerConfig, Params]:
    """A Post-LN model without omega whose outputs are those of this one (Liu et al. 2020, app. C).

    In LN_i(omega_i x + f_i(x)), where x is LN_{i-1}'s output, omega_i becomes a factor on the scale
    and bias of LN_{i-1}, and the rows of the kernels of f_i that read x are divided by it. The
    first omega of a stack has no norm before it, unless `config.embedding_norm` puts one there: it
    becomes a factor on the stack's token table, which then cannot be tied to another, and on its
    positions. So sinusoidal positions become a learned table, and rows may be `config.max_length`
    tokens long at most.

    Args:
      config: of any shape, in which one stack or both follow "admin" or "admin_constant".
      params: of the model, not boxed.

    Returns:
      The config in which these stacks follow "post_ln", and its parameters, on the host.

    Raises:
      ValueError: where no stack has an omega, an omega is 0 somewhere, or norms have no scale.
    """
    with_omega: list[Stack] = [s for s in stacks(config) if scheme(config, s).trained_skip]
    if not with_omega:
        names = (f"model.{s}_residual={getattr(config, f'{s}_residual')!r}" for s in stacks(config))
        raise ValueError(
            f"{' and '.join(names)}: nothing to fold, only admin and admin_constant have an omega"
        )
    if not NORMS[config.norm].scale:
        raise ValueError(f"model.norm={config.norm!r} has no scale, which an omega could enter")
    params = jax.tree.map(np.asarray, params)
    if not config.embedding_norm:
        config, params = _untied(config, params)
    for stack in with_omega:
        omega = _omega(config, stack, params)
        params |= _scaled_bottom(config, stack, params, omega[0, 0])
        params[stack] = _folded_stack(config, stack, params[stack], omega)
    post_ln = {f"{stack}_residual": "post_ln" for stack in with_omega}
    return dataclasses.replace(config, **post_ln), params


def _omega(config: TransformerConfig, stack: Stack, params: Params) -> Float[np.ndarray, "L n D"]:
    """omega of every sublayer, in the order in which they run."""
    omegas = []
    for kind in depth(config, stack).kinds:
        omega = params[stack][f"{kind}_residual"]["shortcut"]["omega"]
        for layer, channel in np.argwhere(np.asarray(omega) == 0)[:1]:
            raise ValueError(
                f"{stack}/{kind}_residual/shortcut/omega is 0 in layer {layer}, channel {channel}: "
                "the kernels that read this channel would have to be divided by it"
            )
        omegas.append(omega)
    return np.stack(omegas, axis=1)


def _untied(config: TransformerConfig, params: Params) -> tuple[TransformerConfig, Params]:
    """The same model, in which each stack's embedding is its own, positions included."""
    params = dict(params)
    sides = [side_of(config, stack) for stack in stacks(config)]
    if "embedding" in params:
        shared = params.pop("embedding")
        params |= {f"{side}embedding": shared for side in sides}
    if not HEADS[config.head].labels and TIED_EMBEDDINGS[config.tied_embeddings].logits:
        params["logits"] = {"kernel": params[f"{sides[-1]}embedding"]["table"].T}
    if vectors := POSITIONS[config.positions].vectors:
        table = np.asarray(vectors(config.max_length, config.d_model), np.float32)
        for name in (f"{side}positions" for side in sides):
            params[name] = params.get(name, {}) | {"table": table}
        config = dataclasses.replace(config, positions="learned")
    return dataclasses.replace(config, tied_embeddings="none"), params


def _scaled_bottom(
    config: TransformerConfig, stack: Stack, params: Params, omega: Float[np.ndarray, "D"]
) -> Params:
    """What feeds a stack, its output times omega."""
    embedding, positions = (
        f"{side_of(config, stack)}{part}" for part in ("embedding", "positions")
    )
    if config.embedding_norm:
        parts = params[positions]
        return {positions: parts | {"norm": _times(parts["norm"], omega)}}
    names = [name for name in (embedding, positions) if name in params]  # no table: rotary
    return {name: _times(params[name], omega) for name in names}


def _folded_stack(
    config: TransformerConfig, stack: Stack, params: Params, omega: Float[np.ndarray, "L n D"]
) -> Params:
    last = np.ones_like(omega[0, :1])
    following = np.concatenate([omega.reshape(-1, config.d_model)[1:], last]).reshape(omega.shape)
    params = dict(params)
    for index, kind in enumerate(depth(config, stack).kinds):
        norm = params[f"{kind}_residual"]["post_norm"]
        params[f"{kind}_residual"] = {"post_norm": _times(norm, following[:, index])}
        params[kind] = {
            name: _over_rows(leaf, omega[:, index]) if name in _READERS[kind] else leaf
            for name, leaf in params[kind].items()
        }
    return params


def _times(params: Params, factor: Float[np.ndarray, "*L D"]) -> Params:
    """Scale and bias of a norm, or a table, times the factor; a norm's own numbers stay."""

    def times(leaf):
        whole = leaf.ndim < factor.ndim
        return leaf if whole else leaf * np.broadcast_to(factor, leaf.shape)

    return jax.tree.map(times, params)


def _over_rows(
    kernel: Float[np.ndarray, "L D *out"], omega: Float[np.ndarray, "L D"]
) -> Float[np.ndarray, "L D *out"]:
    return kernel / np.reshape(omega, omega.shape + (1,) * (kernel.ndim - 2))
