"""Translation: a target sentence from a source sentence, by an encoder-decoder."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Limits, Recipe, Rows
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import paired, prompt_sources
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation import scores as metrics
from transformer_jax.evaluation.search import DecodeSettings
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks.task import Sample, Scores, Task, samples, written
from transformer_jax.training.losses import next_token_loss


def _encode(
    examples: Examples, tokenizer: Tokenizer, labels: tuple[str, ...], limits: Limits
) -> tuple[dict[str, Rows], int]:
    """Inputs and targets, each with eos."""
    del labels
    if not all(isinstance(target, str) for target in examples["target"]):
        raise ValueError(
            "data.source yields several targets of a source, which task.name='text_to_text' takes"
        )
    sources, targets = (tokenizer.encode(examples[name]) for name in ("source", "target"))
    return paired(sources, targets, limits, tokenizer.special.eos)


def _limit(
    prompt_tokens: Int[np.ndarray, "B"], extra_length: int, most_positions: int | None
) -> Int[np.ndarray, "B"]:
    """As many tokens as the source has, and some more. Too few positions are refused by build."""
    del most_positions
    return prompt_tokens + extra_length


def _scored(decode: DecodeSettings, longest_prompt: int) -> tuple[DecodeSettings, int]:
    """One translation of every source."""
    return dataclasses.replace(decode, num_samples=1), longest_prompt


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """BLEU, chrF, exact match and the accuracy of pronouns, with sacreBLEU's signatures."""
    sources, references = split.examples["source"], split.examples["target"]
    settings, _ = _scored(trained.decode, trained.data.settings.max_prompt_length)
    once = dataclasses.replace(trained, decode=settings)
    decode = trained.data.tokenizer.decode
    hypotheses = [decode(ids) for (ids,) in once.generate(split.batches)]
    pronouns = split.examples.get("pronoun")
    scores = score(hypotheses, references, pronouns, bleu_tokenizer=trained.bleu_tokenizer)
    return scores, samples(sources, references, hypotheses)


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    pronouns: Sequence[str] | None,
    *,
    bleu_tokenizer: str,
) -> Scores:
    """Scores of translations under flat names, and sacreBLEU's signatures of two of them.

    Returns:
      "bleu" and "chrf" (0 to 100) with "bleu_signature" and "chrf_signature", "exact_match" and,
      where a sentence has a pronoun, "pronoun_accuracy" (fractions).

    Raises:
      ValueError: no sentences, or lists of different lengths.
    """
    bleu, bleu_signature = metrics.bleu(hypotheses, references, bleu_tokenizer)
    chrf, chrf_signature = metrics.chrf(hypotheses, references)
    scores: Scores = {
        "bleu": bleu,
        "chrf": chrf,
        "exact_match": metrics.exact_match(hypotheses, references),
    }
    if pronouns is not None and any(pronouns):
        scores["pronoun_accuracy"] = metrics.pronoun_accuracy(hypotheses, pronouns)
    return scores | {"bleu_signature": bleu_signature, "chrf_signature": chrf_signature}


TASK = Task(
    recipe=Recipe(
        name="translation",
        reads=("source", "target"),
        columns={"inputs": Column("source"), "targets": Column("target")},
        encode=_encode,
        prompt=prompt_sources,
        predicted="targets",
    ),
    heads={"encoder_decoder": "tokens"},
    loss=next_token_loss,
    score=_score,
    results=written,
    limit=_limit,
    scored=_scored,
    settings=("evaluate.bleu_tokenizer",),
)
