"""Whether activations keep their size as a model grows, in the first steps of training.

The coordinate check of Yang et al. 2021 (2203.03466, appendix D.1): where a learning rate is to
carry over, no activation grows or shrinks with the width or the depth once training has begun.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from transformer_jax.inspection.observed import observe
from transformer_jax.models.family import Batch, Model, Params

# The slope that counts as none, from this step on.
FLAT = 0.05
FIRST_STEP = 8

# By activation a number before the first step, and after each.
Curves = Mapping[str, Float[np.ndarray, "steps"]]


def measure(model: Model, training: Iterator[tuple[Params, Batch]]) -> Curves:
    """The `sizes` of a training's activations, all on its first batch.

    training: the parameters before the first step with its batch, then those after each step; only
    the newest need to exist.
    """
    params, batch = next(training)
    initial = jax.tree.map(jnp.copy, params)
    rows = [sizes(model, initial, params, batch)]
    rows += [sizes(model, initial, params, batch) for params, _ in training]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@functools.partial(jax.jit, static_argnums=0)
def sizes(
    model: Model, initial: Params, params: Params, batch: Batch
) -> dict[str, Float[Array, ""]]:
    """Mean |x| of what enters and what leaves each stack, of the logits, and of their change.

    Of real tokens, without dropout. initial: the parameters that training began with.
    """
    before, after = (_activations(model, weights, batch) for weights in (initial, params))
    means = {}
    for name, (x, real) in after.items():
        means[name] = _mean_size(x, real)
        means[f"change of {name}"] = _mean_size(x - before[name][0], real)
    return means


def slopes(scales: Sequence[float], trained: Sequence[Sequence[Curves]]) -> Curves:
    """The slope of log2 of each size over log2 of the scale.

    0 where all sizes are 0, as before the first change and of what is frozen; NaN where one is 0 or
    not finite.

    trained: `measure` of each scale, of each seed; the mean of the logarithms counts.
    """
    x = np.log2(scales)
    x = x - np.mean(x)
    slopes = {}
    for name in trained[0][0]:
        values = np.array([[seed[name] for seed in seeds] for seeds in trained], np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.mean(np.log2(values), axis=1)
            slope = x @ (y - np.mean(y, axis=0)) / (x @ x)
        slopes[name] = np.where(np.any(values, axis=(0, 1)), slope, 0.0)
    return slopes


def furthest(slopes: Curves) -> dict[str, float]:
    """From `FIRST_STEP` on, the slope of each activation that is furthest from 0."""
    late = {name: slope[FIRST_STEP:] for name, slope in slopes.items()}
    return {name: float(slope[np.argmax(np.abs(slope))]) for name, slope in late.items()}


def grown(slopes: Curves) -> dict[str, float]:
    """What `furthest` finds that is not flat.

    Logits may shrink: where training begins they do so as the root of the width, by the law of
    large numbers, which it takes more than a few steps to outgrow.
    """
    return {
        name: slope
        for name, slope in furthest(slopes).items()
        if not abs(slope) <= FLAT and not (name.endswith("logits") and slope < 0)
    }


def _activations(model: Model, params: Params, batch: Batch) -> dict[str, tuple[Array, Array]]:
    """Each activation, and which of its tokens are real."""
    outputs, observed = observe(model, params, batch)
    activations = {}
    for stack, states in observed.items():
        activations[f"{stack} input"] = states.inputs[0], states.real
        activations[f"{stack} output"] = states.final, states.real
    *_, last = observed.values()
    return activations | {"logits": (outputs.arrays(), last.real)}


def _mean_size(x: Float[Array, "B T _"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    return jnp.mean(jnp.mean(jnp.abs(x), axis=-1), where=real)
