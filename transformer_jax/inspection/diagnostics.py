"""What training logs of a model's inside: pure functions of parameters and a batch."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer_jax.devices.mesh import constrain
from transformer_jax.inspection import observed
from transformer_jax.inspection.dependency import own_dependency, shortcut_variance, skip_scales
from transformer_jax.inspection.steps import update
from transformer_jax.models.family import Batch, Model, Params, Role
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.models.transformer.config import scheme
from transformer_jax.models.transformer.schemes import Stack
from transformer_jax.training.losses import Loss

# Rows of a batch that `diagnose` looks at.
ROWS = 8


def diagnose(
    model: Model, loss: Loss, roles: Mapping[str, Role], before: Params, after: Params, batch: Batch
) -> dict[str, Float[Array, "*n"]]:
    """What training logs of a step from the parameters `before` to those `after` it.

    For each stack: "decoder/branch_variance", "decoder/dependency" (beta_ii),
    "decoder/output_gradient_norm", "decoder/token_similarity" (n,); "decoder/update_ratio",
    "decoder/update_rms", "decoder/update_angle", "decoder/self_attention/entropy",
    "decoder/self_attention/largest_logit", ".../query_norm", ".../key_norm" (L,); and
    "decoder/output_change" () by this step, with a size of 1. "log_z" () is the mean of the log of
    the sum of the exponentials of logits, where the head gives logits. All but the update's and the
    output change are of the parameters before the step, without dropout, on the first `ROWS` rows
    of the batch.
    """
    batch = jax.tree.map(lambda rows: rows[:ROWS], batch)
    outputs, stacks = observed.observe(model, before, batch)
    _, moved = observed.observe(model, after, batch)
    gradient_norms = observed.output_gradient_norms(model, loss, before, batch)
    updates = update(before, after, roles)
    *_, last = stacks.values()
    measured = {}
    if isinstance(outputs.values, Unprojected):
        log_z = jax.nn.logsumexp(outputs.arrays(), axis=-1)
        measured["log_z"] = jnp.mean(log_z, where=last.real)
    for stack, seen in stacks.items():
        measured |= {
            f"{stack}/branch_variance": observed.branch_variance(seen),
            f"{stack}/dependency": own_dependency(model.config, before, stack, seen),
            f"{stack}/output_gradient_norm": gradient_norms[stack],
            f"{stack}/token_similarity": observed.token_similarity(seen),
            f"{stack}/update_ratio": updates[stack].ratio,
            f"{stack}/update_rms": updates[stack].rms,
            f"{stack}/update_angle": updates[stack].angle,
            f"{stack}/output_change": observed.output_change(seen, moved[stack]),
        }
        for kind in seen.entropy:
            measured[f"{stack}/{kind}/largest_logit"] = observed.largest_logit(seen, kind)
            for name in ("entropy", "query_norm", "key_norm"):
                mean = observed.mean_over_queries(seen, getattr(seen, name)[kind])
                measured[f"{stack}/{kind}/{name}"] = mean
    return jax.tree.map(constrain, measured)


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
                "shortcut_variance": shortcut_variance(config, params, stack, seen),
                "branch_variance": observed.branch_variance(seen),
            }
            for stack, seen in stacks.items()
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
