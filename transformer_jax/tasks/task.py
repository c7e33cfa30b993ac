"""What a task is: everything that differs between two things that a model is trained for."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Recipe
from transformer_jax.evaluation.search import DecodeSettings
from transformer_jax.evaluation.trained import Trained
from transformer_jax.training.cross_entropy import METRICS
from transformer_jax.training.losses import Result

# source, reference and output of an example, as texts
Sample = tuple[str, str, str]
Scores = dict[str, Any]

_SAMPLES = 4  # about so many examples are shown besides the first two


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One row of TASKS.

    Attributes:
      recipe: what data makes of the task's examples.
      heads: the model's head (a key of HEADS) by the architectures that the task fits.
      loss: (outputs, batch, label_smoothing=, z_loss=) -> (sum of losses, weight, sums by name).
      metrics: the names of these sums.
      losses: (trained, split) -> means of the sums over a split, and what follows from them.
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
    loss: Callable[..., Result]
    metrics: tuple[str, ...] = METRICS
    losses: Callable[[Trained, Split], dict[str, float]] = Trained.losses
    score: Callable[[Trained, Split], tuple[Scores, list[Sample]]]
    results: Callable[[Trained, Sequence[str]], list[list[str]]] | None = None
    stream: Callable[[Trained, str, int], Iterator[str]] | None = None
    limit: Callable[[Int[np.ndarray, "B"], int, int | None], Int[np.ndarray, "B"]] | None = None
    scored: Callable[[DecodeSettings, int], tuple[DecodeSettings, int]] | None = None
    settings: tuple[str, ...] = ()


def of_full_lines(
    lines: Sequence[str], results: Callable[[Sequence[str]], list[list[str]]], count: int = 1
) -> list[list[str]]:
    """The results of the lines that hold more than blanks; `count` empty ones for the others."""
    full = [number for number, line in enumerate(lines) if line.strip()]
    found = [[""] * count for _ in lines]
    if full:
        chosen = results([lines[number] for number in full])
        for number, texts in zip(full, chosen, strict=True):
            found[number] = texts
    return found


def written(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """What the model writes for each line."""

    def texts(full: Sequence[str]) -> list[list[str]]:
        return trained.texts(full, [trained.data.tokenizer.decode] * len(full))

    return of_full_lines(lines, texts, trained.decode.num_samples)


def samples(*columns: Sequence[str]) -> list[Sample]:
    """Samples from all over a split, whose source, reference and output texts these are."""
    sources, references, outputs = columns
    return spread(list(zip(sources, references, outputs, strict=True)))


def spread(rows: Sequence[Any]) -> list[Any]:
    """The first two rows (the embedded corpus's famous ones), and others from all over."""
    return [*rows[:2], *rows[2 :: -(-len(rows) // _SAMPLES)]]
