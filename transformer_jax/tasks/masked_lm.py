"""Masked language modelling: the hidden tokens of a text, by an encoder alone."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import (
    Batch,
    Column,
    Drawing,
    Encoding,
    Labels,
    Limits,
    Recipe,
)
from transformer_jax.data.prepare.tokenizer import MASK, Tokenizer
from transformer_jax.data.prepare.transforms import between, pieces
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task
from transformer_jax.training.losses import masked_token_loss


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Pieces of documents between bos and eos; so nothing is too long."""
    rows = pieces(tokenizer.encode(examples["text"]), limits.source - 2)
    return {"inputs": between(rows, limits.source, tokenizer.special)[0]}, ()


def _prompt(lines: Sequence[str], tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Lines between bos and eos, to be embedded."""
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

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Batch:
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
        mask = maskable & ((draws < self.mask_rate) | (draws == lowest))

        random_tokens = self.ordinary[(token_draws * len(self.ordinary)).astype(np.int32)]
        noise = np.select([treatment < 0.8, treatment < 0.9], [self.mask_id, random_tokens], tokens)
        return batch | {
            "inputs": np.where(mask, noise, tokens).astype(np.int32),
            "targets": np.where(mask, tokens, 0).astype(np.int32),
        }


def _masking(tokenizer: Tokenizer, drawing: Drawing) -> Masking:
    mask_id = tokenizer.token_id(MASK)
    assert mask_id is not None  # Dataset.tokenizer has checked it
    never, unk = tokenizer.special.silent, tokenizer.special.unk
    special = {*never, mask_id} | ({unk} if unk is not None else set())
    return Masking(drawing.mask_rate, mask_id, never, tuple(sorted(special)), tokenizer.vocab_size)


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """No scores but the losses; as samples, what the model puts in the place of masked tokens."""
    decode, samples = trained.data.tokenizer.decode, []
    for example, predicted in tokens.few_predicted(trained, split):
        inputs, targets = example["inputs"], example["targets"]
        original, filled = (np.where(targets > 0, ids, inputs) for ids in (targets, predicted))
        samples.append((decode(inputs), decode(original), decode(filled)))
    return {}, samples


TASK = Task(
    recipe=Recipe(
        name="masked_lm",
        reads=("text",),
        columns={"inputs": Column("source")},
        encode=_encode,
        prompt=_prompt,
        draw=_masking,
        random_columns=("targets",),
        extra_tokens=(MASK,),
        documents=True,
        predicted="inputs",
    ),
    heads={"encoder_only": "masked_tokens"},
    loss=masked_token_loss,
    score=_score,
    settings=("task.mask_rate",),
)
