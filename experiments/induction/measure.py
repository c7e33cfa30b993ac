"""When a training solves the repeats, what its heads do then, and what is lost without them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.devices.mesh import place
from transformer_jax.inspection import heads, observed
from transformer_jax.inspection.attention import without_heads
from transformer_jax.inspection.losses import of_tokens
from transformer_jax.models.family import Batch, Params

_FIRST, _EVERY = 100, 10  # steps at which it is read
_FORMED = 0.3  # a head's score from which on it counts as formed
_MATCHES = 0.4  # that of the heads that are taken out
_BRANCH = 0.1  # standard deviation of a branch over the stream's, from which on it takes part


def measure(
    config: Config, workdir: Path, *, rates: Sequence[float], seeds: int, enough: int
) -> list[dict[str, Any]]:
    """A row for each learning rate and seed, with kind "training", and its readings, "reading".

    at_25, at_50, at_75: the first read step at which the progress is above that, None: none.
    progress: 1 - loss / ln p, the mean over repeated words whose predecessor is one: 0 where a
      model knows the row's words alone, 1 where it is certain.
    prefix, previous: the largest score of any head; prefix_at, previous_at: when it first is 0.3.
    branch_at: when a branch first has a tenth of the stream's deviation.
    without, control: the progress without the heads of a prefix score above 0.4, and without as
      many others, drawn by the seed.

    enough: the step after which a training that is above 0.5 ends.
    """
    run = build(config)
    trainings = Trainings(run)
    batch = place(run.mesh, run.data.split("validation").batches[0][0])
    look = jax.jit(lambda params: _look(run, params, batch))
    rows = []
    for rate, seed in itertools.product(rates, range(seeds)):
        readings: list[dict[str, Any]] = []
        params = None
        for update in trainings.steps(rate, seed):
            if update.step >= _FIRST and update.step % _EVERY == 0 or update.step == 0:
                params = update.state.params
                readings.append({"step": update.step, **_numbers(jax.device_get(look(params)))})
                if update.step >= enough and readings[-1]["progress"] > 0.5:
                    break
        last = {"learning_rate": rate, "seed": seed}
        rows += [{"kind": "reading", **last, **reading} for reading in readings]
        rows.append({"kind": "training", **last, **_summary(readings)})
        if readings[-1]["prefix"] > _MATCHES:
            rows[-1] |= _ablated(look, params, seed)
    return rows


def _look(run: Any, params: Params, batch: Batch) -> dict[str, Any]:
    """Losses of tokens, and the scores of all heads, on a batch."""
    outputs, stacks = observed.observe(run.model, params, batch)
    activations, tokens = stacks["decoder"], heads.read_tokens(batch, "decoder")
    stream = observed.variances(activations.inputs, activations.real)
    return {
        "losses": of_tokens(outputs, batch, run.loss),
        "words": batch["targets"],
        "prefix": heads.prefix_match(activations, tokens),
        "previous": heads.previous_token(activations),
        "branch": jnp.sqrt(jnp.max(observed.branch_variance(activations) / stream)),
    }


def _numbers(arrays: dict[str, Any]) -> dict[str, float]:
    """What a reading is about, of `_look`'s."""
    return {
        "progress": progress(arrays["losses"], arrays["words"]),
        "prefix": float(np.max(arrays["prefix"])),
        "previous": float(np.max(arrays["previous"])),
        "branch": float(arrays["branch"]),
    }


def progress(losses: np.ndarray, words: np.ndarray) -> float:
    """1 - loss / ln p, the mean over words that repeat, as the one before them does.

    The first repeat of a row is left out: it might as well be a draw.
    """
    distances = periods(words)[:, None]
    repeats = np.arange(words.shape[1]) > distances
    return float(1 - np.mean((losses / np.log(distances))[repeats]))


def periods(words: Int[np.ndarray, "B T"]) -> Int[np.ndarray, " B"]:
    """The least distance at which each row repeats itself to its end, of T where it never does."""
    rows, length = words.shape
    distances = np.full(rows, length)
    for period in range(length - 1, 0, -1):
        distances[np.all(words[:, period:] == words[:, :-period], axis=1)] = period
    return distances


def _summary(readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def first(name: str, least: float) -> int | None:
        return next((each["step"] for each in readings if each[name] > least), None)

    return {
        **{f"at_{share:.0f}": first("progress", share / 100) for share in (25, 50, 75)},
        "prefix_at": first("prefix", _FORMED),
        "previous_at": first("previous", _FORMED),
        "branch_at": first("branch", _BRANCH),
        **{name: readings[-1][name] for name in ("step", "progress", "prefix", "previous")},
    }


def _ablated(look: Any, params: Params, seed: int) -> dict[str, Any]:
    """The progress without the heads that match prefixes, and without as many others."""
    scores = jax.device_get(look(params))["prefix"]
    matching = [tuple(map(int, head)) for head in np.argwhere(scores > _MATCHES)]
    others = [tuple(map(int, head)) for head in np.argwhere(scores <= _MATCHES)]
    count = min(len(matching), len(others))
    indices = np.random.default_rng(seed).permutation(len(others))[:count]
    left_out = {"without": matching, "control": [others[number] for number in indices]}
    changed = {
        name: without_heads(params, "decoder", "self_attention", subset)
        for name, subset in left_out.items()
    }
    numbers = {name: _numbers(jax.device_get(look(tree))) for name, tree in changed.items()}
    return {
        "matching_heads": len(matching),
        **{name: reading["progress"] for name, reading in numbers.items()},
    }
