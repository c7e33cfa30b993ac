"""Masked language modelling: the hidden tokens of a text, by an encoder alone."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Int64

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Batch as HostBatch
from transformer_jax.data.prepare.recipe import Column, Drawing, Limits, Recipe, Rows
from transformer_jax.data.prepare.tokenizer import MASK, Tokenizer
from transformer_jax.data.prepare.transforms import between, pieces
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks.task import Sample, Scores, Task
from transformer_jax.training.losses import Batch, Result, chosen_loss

_SAMPLES = 4


def _encode(
    examples: Examples, tokenizer: Tokenizer, labels: tuple[str, ...], limits: Limits
) -> tuple[dict[str, Rows], int]:
    """Pieces of documents between bos and eos; so nothing is too long."""
    del labels
    rows = pieces(tokenizer.encode(examples["text"]), limits.source - 2)
    return {"inputs": between(rows, limits.source, tokenizer.special)[0]}, 0


def _prompt(
    lines: Sequence[str], tokenizer: Tokenizer, labels: tuple[str, ...], limits: Limits
) -> tuple[dict[str, Rows], int]:
    """Lines between bos and eos, to be embedded."""
    del labels
    inputs, too_long = between(tokenizer.encode(lines), limits.source, tokenizer.special)
    return {"inputs": inputs}, too_long


@dataclasses.dataclass(frozen=True)
class Masking:
    """BERT's procedure (Devlin et al. 2019, section 3.1).

    Each token but bos and eos is to be predicted with probability `mask_rate`, and at least one of
    an example. Of those, 80% become `mask_id`, 10% a random ordinary token, and 10% stay.

    never: tokens that are not predicted. special: all that are no ordinary ones, ascending.
    """

    mask_rate: float
    mask_id: int
    never: tuple[int, ...]
    special: tuple[int, ...]
    vocab_size: int

    @functools.cached_property
    def ordinary(self) -> Int64[np.ndarray, " ordinary"]:
        """The tokens that a random one is drawn from."""
        return np.setdiff1d(np.arange(self.vocab_size), self.special)

    def __call__(self, batch: HostBatch, rng: np.random.Generator) -> HostBatch:
        """The batch with its "inputs" masked, and "targets" of their shape.

        These hold the original token where it is to be predicted, else 0. Examples may be padded or
        packed or both, (..., length); "inputs_positions" start from 0 in each.
        """
        tokens = batch["inputs"]
        draws, treatment, token_draws = np.moveaxis(rng.random((*tokens.shape, 3)), -1, 0)
        maskable = ~np.isin(tokens, self.never)
        draws = np.where(maskable, draws, 1.0)
        starts = np.flatnonzero(batch["inputs_positions"] == 0)
        lowest = np.minimum.reduceat(draws.ravel(), starts)
        lowest = np.repeat(lowest, np.diff(starts, append=tokens.size)).reshape(tokens.shape)
        chosen = maskable & ((draws < self.mask_rate) | (draws == lowest))

        random_tokens = self.ordinary[(token_draws * len(self.ordinary)).astype(np.int32)]
        shown = np.select([treatment < 0.8, treatment < 0.9], [self.mask_id, random_tokens], tokens)
        return batch | {
            "inputs": np.where(chosen, shown, tokens).astype(np.int32),
            "targets": np.where(chosen, tokens, 0).astype(np.int32),
        }


def _masking(tokenizer: Tokenizer, drawing: Drawing) -> Masking:
    mask_id = tokenizer.token_id(MASK)
    assert mask_id is not None  # Dataset.tokenizer has checked it
    never, unk = tokenizer.special.silent, tokenizer.special.unk
    special = {*never, mask_id} | ({unk} if unk is not None else set())
    return Masking(drawing.mask_rate, mask_id, never, tuple(sorted(special)), tokenizer.vocab_size)


def _loss(
    logits: Float[Array, "B T V"], batch: Batch, *, label_smoothing: float, z_loss: float
) -> Result:
    """Cross-entropy of the tokens that were chosen for masking; their number is the weight."""
    targets = batch["targets"]
    return chosen_loss(
        logits, targets, targets != 0, label_smoothing=label_smoothing, z_loss=z_loss
    )


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """No scores but the losses; as samples, what the model puts in the place of masked tokens."""
    batch, numbers = split.batches[len(split.batches) // 2]
    batch = {name: rows[:_SAMPLES] for name, rows in batch.items()}
    asked = batch["targets"] > 0
    predicted = trained.predict_step(trained.params, batch)
    decode = trained.data.tokenizer.decode
    originals = np.where(asked, batch["targets"], batch["inputs"])
    filled = np.where(asked, predicted, batch["inputs"])
    rows = range(int(np.sum(numbers[:_SAMPLES] >= 0)))
    return {}, [
        (decode(batch["inputs"][row]), decode(originals[row]), decode(filled[row])) for row in rows
    ]


TASK = Task(
    recipe=Recipe(
        name="masked_lm",
        reads=("text",),
        columns={"inputs": Column("source")},
        encode=_encode,
        prompt=_prompt,
        draw=_masking,
        drawn=("targets",),
        extra_tokens=(MASK,),
        documents=True,
        predicted="inputs",
    ),
    heads={"encoder_only": "masked_tokens"},
    loss=_loss,
    score=_score,
    settings=("task.mask_rate",),
)
