"""How sharp attention is before training, and what each score costs."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection.observed import observe
from transformer_jax.models.family import Batch, Model
from transformer_jax.models.layers.attention import Attention
from transformer_jax.models.layers.masks import causal_mask
from transformer_jax.models.transformer.config import TransformerConfig
from transformer_jax.models.transformer.initialisation import initialise
from transformer_jax.run import Run

_BATCH = 4  # rows that are timed
_SAMPLE = 0.05  # seconds that one sample of a time lasts at least


def measure(config: Config, workdir: Path, *, what: str, **arguments: Any) -> list[dict[str, Any]]:
    """Rows of `start` or `cost`, whichever `what` names."""
    return {"start": _start, "cost": _cost}[what](build.build(config), **arguments)


def _start(
    run: Run, *, scores: Sequence[str], sizes: Sequence[tuple[int, int]], draws: int
) -> list[dict[str, Any]]:
    """A row for each (d_model, head_dim), score and draw of parameters, which are not trained.

    entropy_share: attention's entropy over the entropy of uniform attention, mean over queries.
    largest_logit: a query's (before the softmax, which only sees differences), mean over queries.
    """
    batch = next(run.data.train_streams())
    rows = []
    for (d_model, head_dim), score in itertools.product(sizes, scores):
        changes = {"d_model": d_model, "head_dim": head_dim, "attention_score": score}
        model = run.model.clone(config=dataclasses.replace(run.model.config, **changes))
        one = jax.jit(functools.partial(_sharpness, model))
        for draw in range(draws):
            metrics = jax.device_get(one(jax.random.key(draw), batch))
            rows.append({"head_dim": head_dim, "score": score, "draw": draw, **metrics})
    return rows


def _sharpness(model: Model, key: Key[Array, ""], batch: Batch) -> dict[str, Float[Array, ""]]:
    params = initialise(model, key, batch)
    observed = observe(model, params, batch)[1]["decoder"]
    entropy, largest = (
        values["self_attention"][0, :, 0] for values in (observed.entropy, observed.largest_logit)
    )
    # The first query sees one key, so that it has no choice.
    most = jnp.log(jnp.arange(1, entropy.shape[1] + 1))[None]
    mask = observed.real & (most > 0)
    return {
        "entropy_share": jnp.mean(entropy / most, where=mask),
        "largest_logit": jnp.mean(largest, where=mask),
    }


def _cost(
    run: Run, *, scores: Sequence[str], shapes: Sequence[tuple[int, int]], rounds: int
) -> list[dict[str, Any]]:
    """A row for each (length, head_dim), round and score: forward and backward of one attention.

    The scores take turns within a round, so that other load of the machine falls on all alike.
    temporary_bytes: what XLA allocates in addition to arguments and results.
    """
    rows = []
    for length, head_dim in shapes:
        programs = {
            score: _program(
                dataclasses.replace(run.model.config, head_dim=head_dim, attention_score=score),
                length,
            )
            for score in scores
        }
        calls = {name: _calls(program) for name, (program, _) in programs.items()}
        for number in range(rounds):
            for score, (program, memory) in programs.items():
                seconds = _seconds(program, calls[score])
                row = {"score": score, "length": length, "head_dim": head_dim, "round": number}
                rows.append({**row, "seconds": seconds, "temporary_bytes": memory})
    return rows


def _program(config: TransformerConfig, length: int) -> tuple[Callable[[], Any], int]:
    """A compiled call without arguments, and its temporary memory in bytes."""
    attention = Attention(config)
    mask = causal_mask(length)[None]

    def attend(attention: Attention, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return attention(x, x, mask, deterministic=True)

    def loss(variables, x):
        out: Any = attention.apply(variables, x, method=attend)
        return jnp.sum(jnp.square(out))

    key, x_key = jax.random.split(jax.random.key(0))
    x = jax.random.normal(x_key, (_BATCH, length, config.d_model))
    variables = attention.init(key, x, method=attend)
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(variables, x).compile()
    memory: Any = compiled.memory_analysis()
    return functools.partial(compiled, variables, x), memory.temp_size_in_bytes


def _calls(program: Callable[[], Any]) -> int:
    """How many calls make a sample. It also makes the first call, which is slower than others."""
    jax.block_until_ready(program())
    return max(1, round(_SAMPLE / _seconds(program, 1)))


def _seconds(program: Callable[[], Any], calls: int) -> float:
    """Seconds of one call, mean over so many."""
    result, started = None, time.perf_counter()
    for _ in range(calls):
        result = program()
    jax.block_until_ready(result)
    return (time.perf_counter() - started) / calls
