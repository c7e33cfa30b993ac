"""Sinks, peaks and drains of trainings, read as they train, at the better of some rates."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.data.corpora import backcopy
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import heads, observed, stream
from transformer_jax.models.family import Batch, Params

_SEED_OF_CHOICE = 100  # which no reported training has


def measure(
    config: Config,
    workdir: Path,
    *,
    rates: Sequence[float],
    seeds: Sequence[int],
    chosen_after: int,
    read_every: int,
) -> list[dict[str, Any]]:
    """A row of every reading of every seed, at the rate whose loss after some steps is the least.

    loss: on a batch of validation, nats a token; rate: that was chosen.
    sink, uniform: the weight on the first token, of queries that are no trigger; the largest of all
      layers and heads, and what uniform weights would have.
    peak_first, peak_others: `stream.peak_share`, after the sublayer where the first is largest;
      norm_ratio: likewise, the largest `stream.norm_ratio`.
    value_ratio: of the head with that sink, the norm of the first token's value over the mean of
      the others'.
    added_mass: of that head, what those queries have left: the weight on an added logit, if any.
    """
    run = build(config)
    trainings = Trainings(run)
    batch = place(run.mesh, run.data.split("validation").batches[0][0])
    numbers = _triggers(run)
    look = jax.jit(lambda params: _look(run, params, batch, numbers))
    rate = rates[0]
    if len(rates) > 1:
        rate = min(rates, key=lambda trial: _loss_after(trainings, look, trial, chosen_after))
    rows = []
    for seed in seeds:
        for update in trainings.steps(rate, seed):
            if update.step % read_every == 0:
                metrics = jax.device_get(look(update.state.params))
                row = {"rate": rate, "seed": seed, "step": update.step}
                rows.append(row | {name: float(value) for name, value in metrics.items()})
    return rows


def _triggers(run: Any) -> tuple[int, ...]:
    """The ids of the words after which the word before them comes; none in other data."""
    if run.data.settings.source.source != "backcopy":
        return ()
    tokenizer = run.data.tokenizer
    words = [backcopy.WORDS[number] for number in backcopy.triggers()]
    return tuple(int(tokenizer.encode([word])[0][0]) for word in words)


def _loss_after(trainings: Trainings, look: Any, rate: float, steps: int) -> float:
    loss = math.inf
    for update in trainings.steps(rate, _SEED_OF_CHOICE):
        if update.step == steps:
            loss = float(look(update.state.params)["loss"])
            break
    return loss if math.isfinite(loss) else math.inf


def _look(run: Any, params: Params, batch: Batch, triggers: tuple[int, ...]) -> dict[str, Any]:
    outputs, stacks = observed.observe(run.model, params, batch)
    activations, tokens = stacks["decoder"], heads.read_tokens(batch, "decoder")
    loss_sum, weight, _ = run.loss(outputs, batch)
    queries = ~jnp.isin(tokens, jnp.array(triggers, jnp.int32))
    first = stream.starts(activations)
    keys = first[:, None] & (queries & ~first)[:, :, None]
    sinks = heads.weight_on(activations, keys)
    places = jnp.arange(tokens.shape[1])
    uniform = jnp.mean(jnp.broadcast_to(1 / (places + 1), tokens.shape), where=queries & ~first)
    peak, others = stream.peak_share(activations)
    highest = jnp.argmax(peak)
    head = jnp.argmax(sinks)
    weights = activations.weights["self_attention"][..., -tokens.shape[1] :]
    mask = (queries & ~first)[None, :, None]
    rest = jnp.mean(1 - jnp.sum(weights, axis=-1), axis=(1, 3), where=mask)
    return {
        "loss": loss_sum / weight,
        "sink": jnp.max(sinks),
        "uniform": uniform,
        "peak_first": peak[highest],
        "peak_others": others[highest],
        "norm_ratio": jnp.max(stream.norm_ratio(activations)),
        "value_ratio": heads.value_ratio(activations).ravel()[head],
        "added_mass": rest.ravel()[head],
        "kurtosis": jnp.max(stream.kurtosis(activations)),
        "absmax_ratio": jnp.max(stream.absmax_ratio(activations)),
    }
