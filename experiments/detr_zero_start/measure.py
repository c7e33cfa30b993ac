"""Whose the gradient of a DETR is, before training and after."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.models.family import Params

_BIASES = ("value_bias", "output_bias")


def measure(config: Config, workdir: Path) -> list[dict[str, Any]]:
    """A row "before" and one "after": the norm of the gradient, and both biases' share of it."""
    run = build.build(config, workdir)
    batch = place(run.mesh, next(iter(run.data.train_streams())))
    if run.task.totals is not None:
        batch = batch | run.task.totals(batch)

    @jax.jit
    def squares(params: Params) -> tuple[Any, Any]:
        gradient: Any = jax.grad(lambda tree: lab.mean_loss(run, run.model, tree, batch))(params)
        first = gradient["decoder"]["self_attention"]
        biases = sum(jnp.sum(jnp.square(first[name][0])) for name in _BIASES)
        return biases, sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient))

    start = lab.draw(run, jax.random.key(config.seed), batch)
    rows = []
    for when, params in (("before", start), ("after", lab.trained(run, workdir))):
        if params is not None:
            biases, total = map(float, squares(params))
            rows.append({"when": when, "norm": total**0.5, "share": biases / total})
    return rows
