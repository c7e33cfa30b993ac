"""The dependencies beta_ij of drawn parameters, and of those that training has left."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.dependency import dependency
from transformer_jax.inspection.observed import observe
from transformer_jax.models.family import Batch
from transformer_jax.models.transformer.config import stacks
from transformer_jax.run import Run


def measure(
    config: Config, workdir: Path, *, draws: int, gains: Sequence[float]
) -> list[dict[str, Any]]:
    """A row for each sublayer i: beta_ij in the column "a{j}".

    At the moment "initial", for each draw and each factor on its queries, keys and values; and
    "trained", where there is a checkpoint. The training run begins with the first draw.
    """
    run = build.build(config, workdir)
    batch = _random_batch(run) if config.model.vocab_size else _first_batch(run)

    @jax.jit
    def draw_one(key):
        return lab.draw(run, key, batch)

    @jax.jit
    def betas(params):
        (stack,) = stacks(run.model.config)
        _, observed = observe(run.model, params, batch)
        return dependency(run.model.config, params, stack, observed[stack])

    rows = []
    for draw in range(draws):
        params = draw_one(jax.random.key(run.seed + draw))
        for gain in gains:
            labels = {"moment": "initial", "draw": draw, "gain": gain}
            rows += _rows(labels, betas(lab.scale_attention(params, gain)))
    params = lab.trained(run, workdir)
    if params is not None:
        labels = {"moment": "trained", "draw": 0, "gain": 1.0}
        rows += _rows(labels, betas(params))
    return rows


def _rows(labels: dict[str, Any], beta: Float[Array, "n n+1"]) -> Iterator[dict[str, Any]]:
    for number, betas in enumerate(np.asarray(beta), start=1):
        components = {f"a{j}": float(value) for j, value in enumerate(betas[: number + 1])}
        yield {**labels, "sublayer": number, **components}


def _first_batch(run: Run) -> Batch:
    """The batch that training begins with."""
    return jax.device_put(next(run.data.train_streams()))


def _random_batch(run: Run) -> Batch:
    """Random tokens, one text a row, in the shapes of a training batch."""
    shape, _ = run.data.batch_shapes()["inputs"]
    tokens = jax.random.randint(jax.random.key(run.seed), shape, 0, run.model.config.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    ones = jnp.ones(shape, jnp.int32)
    return {"inputs": tokens, "inputs_segment_ids": ones, "inputs_positions": positions}
