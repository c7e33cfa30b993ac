"""What a run minimises: sums over what a batch asks for, which the caller divides once."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.family import Batch, Outputs, Sums
from transformer_jax.training.cross_entropy import LossSettings, cross_entropy, token_losses

# Sum of the losses to minimise, its weight, and the sums that are reported
Result = tuple[Float[Array, ""], Float[Array, ""], Sums]


@dataclasses.dataclass(frozen=True)
class Loss:
    """A task's loss as a run minimises it. Hashable, and equal where all its parts are.

    Attributes:
      function, totals, means: see `tasks.task.Task`.
    """

    function: Callable[[Outputs, Batch, LossSettings], Result]
    totals: Callable[[Batch], Batch] | None
    means: Callable[[Sums], dict[str, float]]
    settings: LossSettings

    def __call__(self, outputs: Outputs, batch: Batch) -> Result:
        """The loss of a whole batch, or of a part of one `with_totals`, and the layers' sums."""
        loss, weight, sums = self.function(outputs, self.with_totals(batch), self.settings)
        return loss, weight, outputs.sums | sums

    def with_totals(self, batch: Batch) -> Batch:
        """The batch with the totals of the whole, as columns: so each part of it has them."""
        return self.totals(batch) | batch if self.totals else batch


def means(sums: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """name -> sum / weight in float64, of (sum, weight) scalars on any device.

    Raises ValueError where a weight is 0, so that there is nothing to take the mean of.
    """
    pairs = {name: np.asarray(pair, np.float64) for name, pair in jax.device_get(sums).items()}
    if empty := [name for name, (_, weight) in pairs.items() if weight == 0]:
        raise ValueError(f"no mean of {', '.join(empty)}: the weight is 0 (no real tokens)")
    return {name: float(total / weight) for name, (total, weight) in pairs.items()}


def means_of_tokens(sums: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """The `means`, and the "perplexity" (infinite where it overflows) of "token_loss", in nats."""
    metrics = means(sums)
    with np.errstate(over="ignore"):
        return metrics | {"perplexity": float(np.exp(metrics["token_loss"]))}


@dataclasses.dataclass(frozen=True)
class PlaceLoss:
    """Cross-entropy at the places that a batch asks for; their number is the weight.

    Attributes:
      targets: batch -> the target at every place, and whether it is asked for.
    """

    targets: Callable[[Batch], tuple[Int[Array, "B T"], Bool[Array, "B T"]]]

    def __call__(self, outputs: Outputs, batch: Batch, settings: LossSettings) -> Result:
        targets, mask = self.targets(batch)
        weights = mask.astype(jnp.float32)
        sums = cross_entropy(outputs.values, targets, weights, settings)
        weight = jnp.sum(weights)
        return sums["loss"], weight, {name: (value, weight) for name, value in sums.items()}

    def each(self, outputs: Outputs, batch: Batch) -> Float[Array, "B T"]:
        """-log p(target) at every place, in nats; NaN where none is asked for."""
        targets, mask = self.targets(batch)
        return jnp.where(mask, token_losses(outputs.arrays(), targets), jnp.nan)


def _next_tokens(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    return batch["targets"], batch["targets_segment_ids"] != 0


def _masked_tokens(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    return batch["targets"], batch["targets"] != 0


def _labels(batch: Batch) -> tuple[Int[Array, "B T"], Bool[Array, "B T"]]:
    labels = batch["labels"] - 1  # label + 1 where there is one, 0 everywhere else
    return jnp.maximum(labels, 0), labels >= 0


# Of every real target token; of the tokens chosen for masking; of the label where there is one.
next_token_loss = PlaceLoss(_next_tokens)
masked_token_loss = PlaceLoss(_masked_tokens)
label_loss = PlaceLoss(_labels)
