"""What each layer of a decoder does to the stream, and what is lost without it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.harness import lab
from transformer_jax.inspection import observed
from transformer_jax.inspection.observed import Observed
from transformer_jax.models.family import Batch, Params
from transformer_jax.run import Run


def look(run: Run, params: Params, batch: Batch) -> dict[str, Float[Array, "L"]]:
    """Of each layer on a batch, without dropout.

    stream: the variance of the residual stream after it; branch: the sum of those of what its
      sublayers add.
    similarity: the mean cosine between different tokens of a text after it.
    angle: between the stream before it and after, over pi, the mean over tokens (Gromov et al.
      2024, 2403.17887, equation 4).
    """
    activations = observed.observe(run.model, params, batch)[1]["decoder"]
    kinds = _kinds(activations)
    branches = observed.branch_variance(activations).reshape(-1, kinds)
    return {
        "stream": observed.variances(activations.outputs, activations.real)[kinds - 1 :: kinds],
        "branch": jnp.sum(branches, axis=1),
        "similarity": observed.token_similarity(activations)[kinds - 1 :: kinds],
        "angle": jnp.mean(_angles(activations), axis=(1, 2), where=activations.real),
    }


def rows(numbers: Mapping[str, Float[Array, "L"]], **at: Any) -> list[dict[str, Any]]:
    """The numbers as a row for each layer from 1, of kind "layer", with these columns besides."""
    return [
        {"kind": "layer", **at, "layer": layer, **dict(zip(numbers, values, strict=True))}
        for layer, values in enumerate(zip(*jax.device_get(numbers).values(), strict=True), 1)
    ]


def losses_without(run: Run, params: Params, batch: Batch) -> Float[Array, "L"]:
    """What leaving out each layer adds to the mean loss of a batch: the stream passes it by.

    A layer's last sublayer gets what it began with less what it ends with added to its output. So
    the constants of all other layers stay, which a model of fewer layers would have changed.
    """
    _, stacks = observed.observe(run.model, params, batch)
    activations = stacks["decoder"]
    kinds = _kinds(activations)
    back = activations.inputs[::kinds] - activations.outputs[kinds - 1 :: kinds]
    none = observed.no_perturbations(run.model, params, batch)

    def loss(layer: Any) -> Float[Array, ""]:
        perturbation = jnp.zeros_like(back).at[layer].set(back[layer])
        last = none["decoder"] | {"feed_forward_residual": {"output": perturbation}}
        variables = {"params": params, "perturbations": none | {"decoder": last}}
        outputs = run.model.apply(variables, batch, deterministic=True, method="outputs")
        loss_sum, weight, _ = run.loss(outputs, batch)
        return loss_sum / weight

    whole = lab.mean_loss(run, run.model, params, batch)
    return jax.lax.map(loss, jnp.arange(len(back))) - whole


def _kinds(activations: Observed) -> int:
    """Sublayers of a layer."""
    return len(activations.weights) + 1


def _angles(activations: Observed) -> Float[Array, "L B T"]:
    kinds = _kinds(activations)
    before, after = activations.inputs[::kinds], activations.outputs[kinds - 1 :: kinds]
    norms = jnp.linalg.norm(before, axis=-1) * jnp.linalg.norm(after, axis=-1)
    cosines = jnp.sum(before * after, axis=-1) / jnp.maximum(norms, 1e-30)
    return jnp.arccos(jnp.clip(cosines, -1, 1)) / jnp.pi
