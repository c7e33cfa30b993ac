"""Admin's profile on other batches, and what folding does to a trained model."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.admin_initialization import fold as admin
from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.observed import in_order, observe, output_change
from transformer_jax.models.family import Batch, Model, Params
from transformer_jax.models.transformer import schemes
from transformer_jax.models.transformer.config import depth
from transformer_jax.run import Run

RANDOM, GRADIENT = 1e-4, 1e-3  # sizes of the steps; Adam's first is its learning rate
DRAWS = 5  # of random steps


def measure(config: Config, workdir: Path, *, what: str, **arguments: Any) -> list[dict[str, Any]]:
    """The rows of `profile` or of `folding`, as `what` says, with its arguments."""
    return {"profile": profile, "folding": folding}[what](config, workdir, **arguments)


def profile(
    config: Config, workdir: Path, *, sizes: Sequence[int], batches: int
) -> list[dict[str, Any]]:
    """A row for each size, batch and sublayer: the omega that the first `size` rows give.

    The parameters are always drawn from the config's seed. closed_form: the omega of
    "admin_constant", which needs no batch.
    """
    run = build.build(config, workdir)
    streams = run.data.train_streams()
    inputs = [next(streams) for _ in range(batches)]
    at = depth(run.model.config, "decoder")
    closed_form = schemes.SCHEMES["admin_constant"].skip
    assert closed_form is not None
    constant = np.float32(closed_form(at))

    @jax.jit
    def omegas(key, batch):
        return _omegas(run.model, lab.draw(run, key, batch))[:, 0]

    rows = []
    for size in sizes:
        for number, batch in enumerate(inputs):
            cut = {name: array[:size] for name, array in batch.items()}
            by_sublayer = jax.device_get(omegas(jax.random.key(config.seed), cut))
            for index, omega in enumerate(by_sublayer):
                row = {"size": size, "batch": number, "sublayer": index + 1, "omega": omega}
                rows.append({**row, "closed_form": constant})
    return rows


def folding(config: Config, workdir: Path) -> list[dict[str, Any]]:
    """Two rows: the trained model, and the one without omega that computes the same.

    largest_difference: of its logits from the trained model's, on one training batch.
    loss: nats a target there. loss_after: after a step of `GRADIENT` against the sign of every
    kernel's gradient. output_change: squared change of the stack's output over the width, a token,
    over the squared size of a step of random signs; mean of `DRAWS` draws.
    omega_spread: standard deviation over channels as a share of the mean, mean over sublayers; it
    is 0 before training.
    """
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    batch = jax.device_put(next(run.data.train_streams()))
    folded_config, folded = admin.fold(run.model.config, params)
    omega = np.asarray(_omegas(run.model, params))
    spread = float(np.mean(omega.std(axis=-1) / omega.mean(axis=-1)))
    models = {
        "admin": (run.model, params, spread),
        "folded": (run.model.clone(config=folded_config), folded, 0.0),
    }
    expected, rows = None, []
    for name, (model, params, spread) in models.items():
        logits, metrics = jax.device_get(
            jax.jit(functools.partial(_steps, run, model))(params, batch)
        )
        expected = logits if expected is None else expected
        difference = np.max(np.abs(logits - expected))
        row = {"model": name, "largest_difference": difference, "omega_spread": spread}
        rows.append({**row, **metrics})
    return rows


def _steps(
    run: Run, model: Model, params: Any, batch: Batch
) -> tuple[Float[Array, "B T V"], dict[str, Float[Array, ""]]]:
    """The logits, and what steps away from the parameters do."""

    def mean_loss(params: Params) -> Float[Array, ""]:
        return lab.mean_loss(run, model, params, batch)

    def change(key):
        moved = lab.random_sign_step(key, params, RANDOM, roles)
        after = observe(model, moved, batch)[1]["decoder"]
        return output_change(before, after, RANDOM)

    roles = lab.roles(model, batch)
    loss, gradient = jax.value_and_grad(mean_loss)(params)
    before = observe(model, params, batch)[1]["decoder"]
    changes = jax.lax.map(change, jax.random.split(jax.random.key(0), DRAWS))
    stepped = lab.gradient_sign_step(gradient, params, GRADIENT, roles)
    logits: Any = model.apply({"params": params}, batch, deterministic=True)
    return logits, {
        "loss": loss,
        "loss_after": mean_loss(stepped),
        "output_change": jnp.mean(changes),
    }


def _omegas(model: Model, params: Any) -> Float[Array, "n D"]:
    """The decoder's omegas, in the order of its sublayers."""
    return in_order(model.config, "decoder", params, "shortcut", "omega")
