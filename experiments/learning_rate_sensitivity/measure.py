"""Validation losses by learning rate, and what logits and the first block's gradients do then."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.harness.trainings import Trainings, Update
from transformer_jax.config.build import build
from transformer_jax.configs.default import Config
from transformer_jax.inspection import observed
from transformer_jax.training.optimizer import adam_state
from transformer_jax.training.state import State

# Of warm-up, where the largest logit foretells (Wortsman et al.: step 2,000 of 5,000).
WARM_UP_SHARE = 0.4
# The last of these that a training reaches is its end: one that diverges has one, too.
_LOOKS = 20


def measure(
    config: Config,
    workdir: Path,
    *,
    learning_rates: Sequence[float],
    seed: int,
    gain: float | None = None,
) -> list[dict[str, Any]]:
    """A row for each learning rate, as of `Trainings.row`, with

    made: the last step before it diverged, or of all.
    MOMENT/QUANTITY: what `_look` sees in "warm_up" and at the "end", the last look.

    gain: of QK-norm before training, in place of 1.

    Raises ValueError where there is no learning rate.
    """
    if not learning_rates:
        raise ValueError(
            "results/summary.json names no learning rate for the larger model: run the sweep "
            "cpu first"
        )
    run = build(config)
    if gain is not None:
        family = dataclasses.replace(run.family, init=_with_gain(run.family.init, gain))
        run = dataclasses.replace(run, family=family)
    trainings = Trainings(run)
    look = jax.jit(lambda state, batch: _look(trainings, state, batch))
    steps = run.train.steps
    in_warm_up = max(1, round(WARM_UP_SHARE * run.optimizer.warmup_steps))
    rows = []
    for rate in learning_rates:
        metrics: dict[str, Any] = {}

        def watch(update: Update, metrics: dict[str, Any] = metrics) -> None:
            metrics["made"] = update.step
            moments = {
                "warm_up": update.step == in_warm_up,
                "end": update.step > 0 and update.step % max(1, steps // _LOOKS) == 0,
            }
            if any(moments.values()):
                numbers = jax.device_get(look(update.state, update.batch))
                for moment, now in moments.items():
                    if now:
                        metrics |= {f"{moment}/{name}": value for name, value in numbers.items()}

        rows.append(trainings.row(rate, seed, watch) | metrics)
    return rows


def _look(trainings: Trainings, state: State, batch: Any) -> dict[str, Any]:
    """What the model is after a step, on the batch of that step.

    largest_logit: of the first block's attention. query_norm, key_norm: means over its queries, of
      the query as the score has it and the keys that it sees. alignment: mean over its queries of
      the size of their largest logit over the product of the two norms.
    log_z: mean over tokens of the log of the sum of the exponentials of the logits.
    gradient_rms, update_rms: of the first block's first feed-forward matrix; of the gradients
      that Adam sees, by its second moments, and of its update before the learning rate.
    """
    outputs, stacks = observed.observe(trainings.run.model, state.params, batch)
    activations, kind = stacks["decoder"], "self_attention"
    query, key = activations.query_norm[kind], activations.key_norm[kind]
    alignment = jnp.abs(activations.largest_logit[kind]) / (query * key)

    adam = adam_state(state.opt_state)
    settings = trainings.run.optimizer
    first, second = (tree["decoder"]["feed_forward"]["up"][0] for tree in (adam.mu, adam.nu))
    first = first / (1 - settings.beta1**adam.count)
    second = second / (1 - settings.beta2**adam.count)
    update = first / (jnp.sqrt(second) + settings.epsilon)
    return {
        "largest_logit": observed.largest_logit(activations, kind)[0],
        "query_norm": observed.mean_over_queries(activations, query)[0],
        "key_norm": observed.mean_over_queries(activations, key)[0],
        "alignment": observed.mean_over_queries(activations, alignment)[0],
        "log_z": jnp.mean(jax.nn.logsumexp(outputs.arrays(), axis=-1), where=activations.real),
        "gradient_rms": jnp.sqrt(jnp.mean(second)),
        "update_rms": jnp.sqrt(jnp.mean(jnp.square(update))),
    }


def _with_gain(init: Any, gain: float) -> Any:
    """A family's `init`, with this gain of QK-norm."""

    def scaled(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        return gain * leaf if "query_norm" in name or "key_norm" in name else leaf

    return lambda *of: jax.tree_util.tree_map_with_path(scaled, init(*of))
