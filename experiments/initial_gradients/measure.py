"""Norms of the gradients of the last layer's feed-forward matrices, of models that were drawn."""

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
from transformer_jax.models.family import Model, Params
from transformer_jax.run import Run

ROWS, LENGTH = 8, 24  # of the batch


def measure(
    config: Config, workdir: Path, *, layers: Sequence[int], draws: int
) -> list[dict[str, Any]]:
    """A row for each depth and draw, with the Frobenius norms of both gradients.

    config: of one stack; `layers` replaces its depth.
    """
    run, keys = build.build(config), jax.random.split(jax.random.key(config.seed), draws)
    stack = config.model.architecture.removesuffix("_only")
    rows = []
    for count in layers:
        changes = {f"num_{stack}_layers": count}
        model = run.model.clone(config=dataclasses.replace(run.model.config, **changes))
        one = functools.partial(_norms, run, model, stack)
        norms = jax.jit(functools.partial(jax.lax.map, one), compiler_options=lab.QUICKLY)(keys)
        metrics = jax.device_get(norms)
        for draw in range(draws):
            numbers = {name: float(values[draw]) for name, values in metrics.items()}
            rows.append({"layers": count, "draw": draw, **numbers})
    return rows


def _norms(run: Run, model: Model, stack: str, key: Key[Array, ""]) -> dict[str, Float[Array, ""]]:
    """up: of the last layer's W1; down: of its W2."""
    batch_key, key = jax.random.split(key)
    batch = lab.random_batch(batch_key, model.config.vocab_size, ROWS, LENGTH)
    params = lab.draw(run, key, batch, model)

    def mean_loss(params: Params) -> Float[Array, ""]:
        return lab.mean_loss(run, model, params, batch)

    gradient: Any = jax.grad(mean_loss)(params)
    last = gradient[stack]["feed_forward"]
    return {name: jnp.linalg.norm(last[name][-1]) for name in ("up", "down")}
