"""What a task is: everything that differs between two things that a model is trained for."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Recipe
from transformer_jax.evaluation.decoder import DecodeSettings, Limit
from transformer_jax.evaluation.trained import Predict, Trained
from transformer_jax.models.family import Batch, Outputs, Sums
from transformer_jax.tasks import tokens
from transformer_jax.training.cross_entropy import METRICS, LossSettings
from transformer_jax.training.losses import Loss, Result, means_of_tokens

# source, reference and output of an example, as texts
Sample = tuple[str, str, str]
Scores = dict[str, Any]

_SAMPLES = 4  # about so many examples are shown besides the first two


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One row of TASKS. What is not given is that of a task over tokens.

    Attributes:
      recipe: what data makes of the task's examples.
      heads: the model's head (a key of HEADS) by the architectures that the task fits.
      loss: (outputs, batch, settings) -> sum of losses, its weight, sums by name.
      metrics: the names of these sums.
      totals: a whole batch -> what the loss of each part of it needs to know of the whole, such as
        how many objects it holds, as columns (B, 1) which are the same in all rows; None: nothing.
      means: sums -> their means, and the numbers that follow from these.
      predict: (outputs, batch) -> what is predicted, as arrays whose rows are the batch's.
      judge: (`means` of the last logging window, trained) -> what became of a run that has made all
        its steps ("finished", "plateaued" or "diverged"), and the numbers that this rests on.
      losses: (trained, split) -> `means` over a split, and what follows from them.
      score: (trained, split) -> scores of what the model writes or predicts, and samples.
      results: (trained, lines) -> the results of each line; None: the task has none.
      stream: (trained, line, number of the line) -> its results piece by piece, as they come; None:
        they come whole.
      limit: (tokens of prompts, decode.extra_length, most positions or None) -> most tokens that
        follow, eos included; None: the task decodes nothing.
      scored: (decode settings, most tokens of a prompt) -> both as `score` uses them; None: it
        decodes nothing.
      settings: keys of the config that tasks with them alone read, such as "task.mask_rate".
    """

    recipe: Recipe
    heads: dict[str, str]
    loss: Callable[[Outputs, Batch, LossSettings], Result]
    metrics: tuple[str, ...] = METRICS
    totals: Callable[[Batch], Batch] | None = None
    means: Callable[[Sums], dict[str, float]] = means_of_tokens
    predict: Predict = tokens.likeliest
    judge: Callable[[Mapping[str, float], Trained], tuple[str, dict[str, float]]] = tokens.judge
    losses: Callable[[Trained, Split], dict[str, float]] = Trained.losses
    score: Callable[[Trained, Split], tuple[Scores, list[Sample]]]
    results: Callable[[Trained, Sequence[str]], list[list[str]]] | None = None
    stream: Callable[[Trained, str, int], Iterator[str]] | None = None
    limit: Limit | None = None
    scored: Callable[[DecodeSettings, int], tuple[DecodeSettings, int]] | None = None
    settings: tuple[str, ...] = ()

    def bound_loss(self, settings: LossSettings) -> Loss:
        """The loss as a run with these settings minimises it."""
        return Loss(self.loss, self.totals, self.means, settings)

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of the numbers that `means` makes of the task's own sums."""
        return tuple(self.means(dict.fromkeys(self.metrics, (0.0, 1.0))))  # pyright: ignore


def samples(*columns: Sequence[str]) -> list[Sample]:
    """Samples from all over a split, whose source, reference and output texts these are."""
    sources, references, outputs = columns
    return spread(list(zip(sources, references, outputs, strict=True)))


def spread(rows: Sequence[Any]) -> list[Any]:
    """The first two rows (the embedded corpus's famous ones), and others from all over."""
    return [*rows[:2], *rows[2 :: -(-len(rows) // _SAMPLES)]]
