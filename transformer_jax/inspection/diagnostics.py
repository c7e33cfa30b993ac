"""What training logs of a model's inside: pure functions of parameters and a batch."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer_jax.devices.mesh import constrain
from transformer_jax.inspection import observed
from transformer_jax.inspection.dependency import shortcut_variance, skip_scales
from transformer_jax.inspection.measures import DIAGNOSTICS, Step
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer.config import scheme
from transformer_jax.models.transformer.schemes import Stack


def diagnose(step: Step) -> dict[str, Float[Array, "*n"]]:
    """All of `DIAGNOSTICS`, by "PLACE/NAME"."""
    return {
        "/".join(filter(None, (place, name))): value
        for name, measure in DIAGNOSTICS.items()
        for place, value in measure(step).items()
    }


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
    _, dropout = jax.random.split(key)

    def measure(params: Params, batch: Batch) -> dict[Stack, dict[str, Float[Array, "n"]]]:
        _, stacks = observed.observe(model, params, batch, dropout)
        measured = {
            stack: {
                "omega": jnp.mean(skip_scales(config, params, stack), axis=-1),
                "shortcut_variance": shortcut_variance(config, params, stack, activations),
                "branch_variance": observed.branch_variance(activations),
            }
            for stack, activations in stacks.items()
            if scheme(config, stack).profiled
        }
        return jax.tree.map(constrain, measured)

    names = ("omega", "shortcut_variance", "branch_variance")
    return {
        stack: [
            {"sublayer": number + 1, "layer": layer + 1, "kind": kind}
            | {name: float(values[name][number]) for name in names}
            for number, (layer, kind) in enumerate(observed.sublayers(config, stack))
        ]
        for stack, values in jax.device_get(jax.jit(measure)(params, batch)).items()
    }
