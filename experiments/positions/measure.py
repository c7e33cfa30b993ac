"""The loss of a trained language model by position, in texts longer than it was trained on."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.data.corpora import bigram
from transformer_jax.data.dataset import Dataset
from transformer_jax.models.family import Batch, Params
from transformer_jax.run import Run


def measure(config: Config, workdir: Path, *, length: int) -> list[dict[str, Any]]:
    """A row for each half of each piece in validation texts of `length` tokens.

    piece: its number in the text, from 0. half: "drawn" or "copied". token_loss: nats a word, mean
    over positions and texts. A causal model sees nothing of what comes later: the first tokens have
    the loss that they have in a short text.
    """
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    settings = run.data.settings
    data = Dataset(dataclasses.replace(settings, longest=settings.longest | {"target": length}))
    one = jax.jit(functools.partial(_losses, run, params))
    sums = jax.device_get([one(batch) for batch, _ in data.split("validation").batches])
    losses, counts = np.sum(sums, axis=0).reshape(2, -1, 2, bigram.HALF).sum(axis=-1)
    return [
        {"piece": piece, "half": half, "token_loss": loss / count}
        for piece, row in enumerate(zip(losses, counts, strict=True))
        for half, loss, count in zip(("drawn", "copied"), *row, strict=True)
    ]


def _losses(
    run: Run, params: Params, batch: Batch
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Sum of the losses at each position, and how many texts reach it."""
    outputs, _ = run.outputs(params, batch, None, ())
    log_p = jax.nn.log_softmax(outputs.arrays())
    losses = -jnp.take_along_axis(log_p, batch["targets"][..., None], axis=-1)[..., 0]
    real = batch["targets_segment_ids"] > 0
    return jnp.sum(losses, axis=0, where=real), jnp.sum(real, axis=0, dtype=losses.dtype)
