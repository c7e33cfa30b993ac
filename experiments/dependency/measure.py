"""The dependencies beta_ij at initialisation and after training."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from configs.default import Config
from transformer_jax import build
from transformer_jax.checkpoint.checkpoints import Checkpoints
from transformer_jax.inspection.dependency import dependency
from transformer_jax.inspection.observed import observe
from transformer_jax.models.transformer.config import stacks
from transformer_jax.models.transformer.shapes import Batch
from transformer_jax.run import Params, Run
from transformer_jax.training import state as train_state


def measure(
    config: Config, workdir: Path, *, draws: int, gains: Sequence[float]
) -> list[dict[str, Any]]:
    """A row for each sublayer i: beta_ij in the column "a{j}".

    The moment is "initial", for each draw and each factor on its queries, keys and values; and
    "trained", where there is a checkpoint. The first draw is the training run's.
    """
    run = build.build(config, workdir)
    batch = _random_batch(run) if config.model.vocab_size else _first_batch(run)

    @jax.jit
    def draw_one(key):
        return train_state.create(
            run.init, run.optimizer, key, batch, metrics=(), ema=False, mesh=run.mesh
        ).params

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
            rows += _rows(labels, betas(_scaled(params, gain)))
    if (workdir / "checkpoints").is_dir():
        abstract = jax.eval_shape(draw_one, jax.random.key(run.seed))
        checkpoints = Checkpoints(workdir / "checkpoints", keep_last=1, best_metric="")
        found = checkpoints.restore_parameters("last", abstract)
        if found is not None:  # what became non-finite has saved nothing
            labels = {"moment": "trained", "draw": 0, "gain": 1.0}
            rows += _rows(labels, betas(found[1]))
    return rows


def _scaled(params: Params, gain: float) -> Params:
    """The parameters with the factor on all kernels that make queries, keys and values."""

    def scaled(path, leaf):
        return gain * leaf if path[-1].key in ("query", "key", "value") else leaf

    return jax.tree_util.tree_map_with_path(scaled, params)


def _rows(labels: dict[str, Any], beta: Float[Array, "n n+1"]) -> Iterator[dict[str, Any]]:
    for number, betas in enumerate(np.asarray(beta), start=1):
        components = {f"a{j}": float(value) for j, value in enumerate(betas[: number + 1])}
        yield {**labels, "sublayer": number, **components}


def _first_batch(run: Run) -> Batch:
    """The one that training begins with."""
    return jax.device_put(next(run.data.train_streams()))


def _random_batch(run: Run) -> Batch:
    """Random tokens, one text a row, in the shapes of a training batch."""
    shape = run.data.batch_shapes()["inputs"]
    tokens = jax.random.randint(jax.random.key(run.seed), shape, 0, run.model.config.vocab_size)
    positions = jnp.broadcast_to(jnp.arange(shape[1])[None], shape)
    ones = jnp.ones(shape, jnp.int32)
    return {"inputs": tokens, "inputs_segment_ids": ones, "inputs_positions": positions}
