"""What a run minimises: sums over what a batch asks for, which the caller divides once."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.training.cross_entropy import cross_entropy

# Nats: a plateau is at most so far below the unigram entropy, a divergence so far above ln V.
PLATEAU_MARGIN = 0.1
DIVERGENCE_MARGIN = 1.0

Batch = dict[str, Int[Array, "B _"]]
# name -> (sum, weight): what adds up over batches, devices and steps
Sums = dict[str, tuple[Float[Array, ""], Float[Array, ""]]]
# Sum of the losses to minimise in nats, its weight, and the sums that a task reports
Result = tuple[Float[Array, ""], Float[Array, ""], Sums]
Logits = Float[Array, "B T V"] | Unprojected
# (outputs of the model, batch) -> Result
Loss = Callable[[Any, Batch], Result]


def means(window: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """name -> sum / weight in float64, of (sum, weight) scalars on any device.

    A "token_loss", in nats, brings along its "perplexity" (infinite where it overflows).

    Raises:
      ValueError: a weight is 0, so that there is nothing to take the mean of.
    """
    sums = {name: np.asarray(pair, np.float64) for name, pair in jax.device_get(window).items()}
    empty = [name for name, (_, weight) in sums.items() if weight == 0]
    if empty:
        raise ValueError(f"no mean of {', '.join(empty)}: the weight is 0 (no real tokens)")
    result = {name: float(total / weight) for name, (total, weight) in sums.items()}
    if "token_loss" in result:
        with np.errstate(over="ignore"):
            result["perplexity"] = float(np.exp(result["token_loss"]))
    return result


def judge(
    token_loss: float, *, unigram_entropy: float, vocab_size: int
) -> Literal["finished", "plateaued", "diverged"]:
    """What became of a run whose objective is tokens, and that has made all its steps.

    diverged: the loss is more than `DIVERGENCE_MARGIN` above ln V, the loss of a uniform guess, or
      NaN.
    plateaued: it is more than the unigram entropy - `PLATEAU_MARGIN`: all that was learnt is how
      often each token occurs, as of a Post-LN model that is too deep for its learning rate.

    Args:
      token_loss: mean of -log p(target) in nats a token, without label smoothing, over the last
        logging window: the steps since the last multiple of `log_every` before the end.
      unigram_entropy: of the targets, in nats a token.
      vocab_size: V, the tokens that the model chooses from.
    """
    if not token_loss <= math.log(vocab_size) + DIVERGENCE_MARGIN:
        return "diverged"
    return "plateaued" if token_loss > unigram_entropy - PLATEAU_MARGIN else "finished"


def next_token_loss(
    logits: Logits, batch: Batch, *, label_smoothing: float, z_loss: float
) -> Result:
    """Cross-entropy of every real target token; their number is the weight."""
    return chosen_loss(
        logits,
        batch["targets"],
        batch["targets_segment_ids"] != 0,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )


def label_loss(logits: Logits, batch: Batch, *, label_smoothing: float, z_loss: float) -> Result:
    """Cross-entropy of the label at every place that has one; their number is the weight.

    `labels` holds label + 1 there and 0 everywhere else.
    """
    labels = batch["labels"] - 1
    return chosen_loss(
        logits,
        jnp.maximum(labels, 0),
        labels >= 0,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )


def chosen_loss(
    logits: Logits,
    targets: Int[Array, "B T"],
    chosen: Bool[Array, "B T"],
    *,
    label_smoothing: float,
    z_loss: float,
) -> Result:
    """Cross-entropy of the targets at the chosen places; their number is the weight."""
    weights = chosen.astype(jnp.float32)
    sums = cross_entropy(logits, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
    weight = jnp.sum(weights)
    return sums["loss"], weight, {name: (value, weight) for name, value in sums.items()}
