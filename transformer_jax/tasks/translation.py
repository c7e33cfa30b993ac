"""Translation: a target sentence from a source sentence, by an encoder-decoder."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Limits, Recipe, Rows
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import paired, prompt_sources
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.scores import bleu, chrf, exact_match, pronoun_accuracy
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
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


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """BLEU, chrF, exact match and the accuracy of pronouns, with sacreBLEU's signatures."""
    sources, references = split.examples["source"], split.examples["target"]
    hypotheses = tokens.one_text_each(trained, split)
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
    one_each = [[text] for text in references]
    scores = bleu(hypotheses, one_each, bleu_tokenizer) | chrf(hypotheses, one_each)
    scores |= exact_match(hypotheses, one_each)
    if pronouns is not None and any(pronouns):
        scores["pronoun_accuracy"] = pronoun_accuracy(hypotheses, pronouns)
    return scores


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
    results=tokens.written,
    limit=_limit,
    scored=tokens.one_each,
    settings=("evaluate.bleu_tokenizer",),
)
