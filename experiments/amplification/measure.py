"""Output change and dependencies of encoders that were drawn, but not trained."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.dependency import own_dependency
from transformer_jax.inspection.observed import observe, output_change
from transformer_jax.models.family import Model, Params
from transformer_jax.run import Run

ROWS, LENGTH = 8, 32  # of the batch
RANDOM, GRADIENT = 1e-4, 1e-6  # sizes of the two steps


def measure(
    config: Config, workdir: Path, *, layers: Sequence[int], draws: int
) -> list[dict[str, Any]]:
    """A row for each depth and draw: the change by both steps, and the sum of beta_ii^2.

    config: an encoder's; `layers` replaces its depth.
    """
    run, keys = build.build(config), jax.random.split(jax.random.key(config.seed), draws)
    rows = []
    for count in layers:
        changes = {"num_encoder_layers": count}
        model = run.model.clone(config=dataclasses.replace(run.model.config, **changes))
        measure_one = functools.partial(_measure, run, model)
        measure_all = jax.jit(
            functools.partial(jax.lax.map, measure_one), compiler_options=lab.QUICKLY
        )
        metrics = jax.device_get(measure_all(keys))
        for draw in range(draws):
            numbers = {name: float(values[draw]) for name, values in metrics.items()}
            rows.append({"sublayers": 2 * count, "draw": draw, **numbers})
    return rows


def _measure(run: Run, model: Model, key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
    batch_key, key, step_key = jax.random.split(key, 3)
    batch = lab.random_batch(batch_key, model.config.vocab_size, ROWS, LENGTH)
    params, roles = lab.draw(run, key, batch, model), lab.roles(model, batch)

    def mean_loss(params: Params) -> Float[Array, ""]:
        return lab.mean_loss(run, model, params, batch)

    # One after the other, so that the model is compiled once for all three.
    moved = (
        params,
        lab.random_sign_step(step_key, params, RANDOM, roles),
        lab.gradient_sign_step(jax.grad(mean_loss)(params), params, GRADIENT, roles),
    )
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *moved)
    observed = jax.lax.map(lambda params: observe(model, params, batch)[1]["encoder"], stacked)
    before, by_random, by_gradient = (
        jax.tree.map(lambda leaf, at=at: leaf[at], observed) for at in range(3)
    )
    return {
        "random": output_change(before, by_random, RANDOM),
        "gradient": output_change(before, by_gradient, GRADIENT),
        # The output change is proportional to their sum (Liu et al. 2020, theorem 2).
        "dependencies": jnp.sum(
            jnp.square(own_dependency(model.config, params, "encoder", before))
        ),
    }
