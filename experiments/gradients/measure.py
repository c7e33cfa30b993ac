"""Gradient norms with respect to the outputs of all sublayers, of models that were drawn only."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.observed import output_gradient_norms
from transformer_jax.models.transformer.config import depth
from transformer_jax.models.transformer.schemes import Stack
from transformer_jax.run import Run

ROWS, LENGTH = 8, 24  # of the batch


def measure(
    config: Config, workdir: Path, *, draws: int, gains: Sequence[float]
) -> list[dict[str, Any]]:
    """A row for each sublayer: the norm over the largest of all sublayers of the model.

    For each draw and each factor on its queries, keys and values.
    """
    run = build.build(config)
    keys = jax.random.split(jax.random.key(run.seed), draws)

    @functools.partial(jax.jit, compiler_options=lab.QUICKLY)
    def measure_all(gain):
        return jax.lax.map(functools.partial(_norms, run, gain), keys)

    return [row for gain in gains for row in _rows(run, gain, measure_all(gain))]


def _rows(
    run: Run, gain: float, by_stack: dict[Stack, Float[Array, "draws n"]]
) -> Iterator[dict[str, Any]]:
    by_stack, draws = jax.device_get(by_stack), len(next(iter(by_stack.values())))
    for draw in range(draws):
        largest = max(norms[draw].max() for norms in by_stack.values())
        for stack, norms in by_stack.items():
            kinds = depth(run.model.config, stack).kinds
            for number, norm in enumerate(norms[draw] / largest):
                layer, kind = divmod(number, len(kinds))
                place = {"stack": stack, "layer": layer + 1, "kind": kinds[kind]}
                yield {"gain": gain, "draw": draw, **place, "norm": float(norm)}


def _norms(run: Run, gain: Float[Array, ""], key: Key[Array, ""]) -> dict[Stack, Float[Array, "n"]]:
    batch_key, key = jax.random.split(key)
    batch = lab.random_batch(batch_key, run.model.config.vocab_size, ROWS, LENGTH)
    params = lab.scale_attention(lab.draw(run, key, batch), gain)
    return output_gradient_norms(run.model, run.loss, params, batch)
