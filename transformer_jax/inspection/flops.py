"""The work of a training step: multiplications and additions of its matrix products."""

import math
from collections.abc import Mapping
from typing import Any

import jax

from transformer_jax.devices.chips import local_peak
from transformer_jax.devices.mesh import use
from transformer_jax.models.family import with_memory
from transformer_jax.run import Run


def model_flops(run: Run) -> float:
    """FLOPs of the products that a training step cannot do without, on all devices together.

    They are three times the forward pass's, since each product has two in the backward pass. What
    is computed again does not count (Chowdhery et al. 2022, 2204.02311, appendix B). Attention
    counts whole rows, masked or not, and logits count at all tokens: how many of them a masked
    language model skips depends on the batch.
    """
    model = run.model.clone(config=run.model.config.plain())

    def forward(params, batch, memory):
        outputs, memory = with_memory(model, params, batch, None, memory)
        return outputs.arrays(), memory

    state = run.abstract_state
    with use(run.mesh):
        traced = jax.jit(forward).trace(state.params, run.abstract_batch(), state.memory)
    return 3 * product_flops(traced)


def seconds_at_peak(run: Run) -> float | None:
    """The time that `model_flops` of a training step take at the devices' peak.

    None where the peak is not known, as for CPUs. Model FLOPs utilisation is this over the time
    that the step took.
    """
    devices = list(run.mesh.devices.flat)
    peak = local_peak(devices[0])
    return model_flops(run) / (len(devices) * peak.flops) if peak else None


def product_flops(traced: Any) -> float:
    """Multiplications and additions of all products and convolutions of what was traced.

    That is `jax.jit(function).trace(...)`, or a jaxpr. XLA's own count leaves out that loops
    repeat. A loop that ends by a condition counts once.
    """
    total = 0.0
    for equation in getattr(traced, "jaxpr", traced).eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            total += 2 * summed * equation.outvars[0].aval.size
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            outputs = kernel[parameters["dimension_numbers"].rhs_spec[0]]
            # What a backward pass puts between its inputs is multiplied by nobody.
            zeros = math.prod(parameters["lhs_dilation"])
            total += 2 * equation.outvars[0].aval.size * math.prod(kernel) / outputs / zeros
        inner = jax.tree.leaves(list(parameters.values()))
        parts = [product_flops(leaf) for leaf in inner if hasattr(leaf, "eqns")]
        # Only one of a condition's branches is taken.
        once = max(parts, default=0.0) if name == "cond" else sum(parts)
        total += _repeats(name, parameters) * once
    return total


def _repeats(name: str, parameters: Mapping[str, Any]) -> int:
    """How often an equation runs what it contains, on all devices together."""
    if name == "scan":
        return parameters["length"]
    if name == "shard_map":
        return parameters["mesh"].size
    return math.prod(parameters["grid_mapping"].grid) if name == "pallas_call" else 1
