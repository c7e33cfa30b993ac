"""The loss and the time of scoring: by segments with memory, and by a window that slides."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.models.family import Params
from transformer_jax.run import Run


def measure(
    config: Config,
    workdir: Path,
    *,
    memories: Sequence[int],
    contexts: Sequence[int],
    characters: int,
) -> list[dict[str, Any]]:
    """Rows of how validation is scored: the loss in nats a character, and the time of one.

    scored "memory": all of validation in segments of the training's length, by each length of
    memory. scored "window": so many characters, spread evenly over validation, each given the
    `length` characters before it, which are read anew for each, without memory.
    """
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    rows = [
        {"scored": "memory", "length": length, **_with_memory(config, workdir, params, length)}
        for length in memories
    ]
    (text,) = run.data.split("validation").examples["text"]
    (ids,) = run.data.tokenizer.encode([text])
    ends = np.linspace(max(contexts), len(ids) - 1, characters).astype(int)
    return rows + [
        {"scored": "window", "length": length, **_sliding(run, params, np.array(ids), ends, length)}
        for length in contexts
    ]


def _with_memory(config: Config, workdir: Path, params: Params, length: int) -> dict[str, float]:
    """Of a plain model the length is 0."""
    changes = {"evaluate.memory_length": length} if config.model.memory_length else {}
    trained = build.build(replace(config, changes), workdir).trained(params)
    split = trained.data.split("validation")
    seconds, losses = _timed(lambda: trained.losses(split))
    tokens = sum(int((batch["targets"] > 0).sum()) for batch, _ in split.batches)
    return {"loss": losses["token_loss"], "microseconds": 1e6 * seconds / tokens}


def _sliding(
    run: Run, params: Params, ids: Int[np.ndarray, " T"], ends: Int[np.ndarray, " N"], length: int
) -> dict[str, float]:
    """The mean loss of the tokens at `ends`, each the last of a row of length + 1 tokens."""
    rows = run.evaluate.batch_size
    windows = ids[ends[:, None] + np.arange(-length, 1)]

    @jax.jit
    def last(targets: Int[Array, "B T"]) -> Float[Array, ""]:
        batch = {
            "targets": targets,
            "targets_segment_ids": jnp.ones_like(targets),
            "targets_positions": jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape),
        }
        outputs, _ = run.outputs(params, batch, None, ())
        log_p = jax.nn.log_softmax(outputs.arrays()[:, -1])
        return -jnp.sum(jnp.take_along_axis(log_p, targets[:, -1:], axis=-1))

    def score() -> float:
        parts = [last(windows[start : start + rows]) for start in range(0, len(windows), rows)]
        return float(np.sum(jax.device_get(parts)))

    seconds, total = _timed(score)
    return {"loss": total / len(ends), "microseconds": 1e6 * seconds / len(ends)}


def _timed(score: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds of a second call, as the first compiles, and what it returns."""
    score()
    started = time.perf_counter()
    output = score()
    return time.perf_counter() - started, output
