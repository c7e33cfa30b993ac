"""What tasks over tokens and labels share: predictions, texts, and what became of a run."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import NumberedBatch
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.evaluation.trained import Trained
from transformer_jax.models.family import Batch, Outputs

# Nats: a plateau is at most so far below the unigram entropy, a divergence so far above ln V.
PLATEAU_MARGIN = 0.1
DIVERGENCE_MARGIN = 1.0

_FEW = 4  # examples whose predictions are shown


def judge(means: Mapping[str, float], trained: Trained) -> tuple[str, dict[str, float]]:
    """What became of a run whose objective is tokens or labels, and what that rests on.

    diverged: the loss of a token is more than `DIVERGENCE_MARGIN` above ln V, the loss of a uniform
      guess, or NaN.
    plateaued: it is more than the unigram entropy - `PLATEAU_MARGIN`: all that was learnt is how
      often each token occurs, as of a Post-LN model that is too deep for its learning rate.
    finished: neither, or the model predicts labels.

    means: "token_loss" is that of -log p(target) in nats a token, without label smoothing.
    """
    token_loss, entropy = means["token_loss"], trained.data.unigram_entropy
    grounds = {"train/token_loss": token_loss}
    if entropy is None:
        return "finished", grounds
    grounds["unigram_entropy"] = entropy
    if not token_loss <= math.log(trained.model.config.vocab_size) + DIVERGENCE_MARGIN:
        return "diverged", grounds
    return "plateaued" if token_loss > entropy - PLATEAU_MARGIN else "finished", grounds


def likeliest(outputs: Outputs, batch: Batch) -> Int[Array, "B T"]:
    """The likeliest token or label, from 0, at every place."""
    return jnp.argmax(outputs.arrays(), axis=-1)


def likeliest_labels(outputs: Outputs, batch: Batch) -> Int[Array, "B T"]:
    """The likeliest label, from 0, where there is one to predict; -1 elsewhere."""
    return jnp.where(batch["labels"] > 0, likeliest(outputs, batch), -1)


def labels(trained: Trained, batches: Sequence[NumberedBatch]) -> list[list[str]]:
    """The labels that `likeliest_labels` predicts, by example."""
    names = trained.data.labels
    rows = trained.predict(batches)
    return [[names[label] for label in row.tolist() if label >= 0] for row in rows]


def labels_of_lines(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """The labels of each line."""
    return of_full_lines(lines, lambda full: labels(trained, trained.data.prompts(full)))


def few_predicted(
    trained: Trained, split: Split
) -> list[tuple[dict[str, Int[np.ndarray, "T"]], Int[np.ndarray, "T"]]]:
    """A few examples from the middle of a split, and what is predicted of each."""
    batch, numbers = split.batches[len(split.batches) // 2]
    few = {name: rows[:_FEW] for name, rows in batch.items()}
    real = numbers[:_FEW] >= 0
    predicted = trained.predict([(few, np.where(real, np.cumsum(real) - 1, -1))])
    examples = [{name: rows[row] for name, rows in few.items()} for row in np.flatnonzero(real)]
    return list(zip(examples, predicted, strict=True))


def one_each(decode: DecodeSettings, longest_prompt: int) -> tuple[DecodeSettings, int]:
    """Settings by which each prompt gets one text, and the prompts' length, which stays."""
    return dataclasses.replace(decode, num_samples=1), longest_prompt


def one_text_each(trained: Trained, split: Split) -> list[str]:
    """The text that the model writes for each example of a split, which `decode.stop` ends."""
    settings, _ = one_each(trained.writer.settings, trained.data.settings.max_prompt_length)
    return [text for (text,) in trained.writing(settings).texts(split.batches)]


def written(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """What the model writes for each line; for a blank one, which counts as a line, nothing."""
    texts = zip(lines, trained.texts(trained.data.prompts(lines)), strict=True)
    return [[""] * len(samples) if _is_blank(line) else samples for line, samples in texts]


def of_full_lines(
    lines: Sequence[str], results: Callable[[Sequence[str]], list[list[str]]]
) -> list[list[str]]:
    """The results of the lines that hold more than blanks; an empty one for each of the others."""
    of_full = iter(results([line for line in lines if not _is_blank(line)]))
    return [[""] if _is_blank(line) else next(of_full) for line in lines]


def _is_blank(line: Any) -> bool:
    return isinstance(line, str) and not line.strip()  # not an image's pixels
