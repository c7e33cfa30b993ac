"""Translation: a target sentence from a source sentence, by an encoder-decoder."""

import numpy as np

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import paired, prompt_sources
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.decoder import Lengths
from transformer_jax.evaluation.scores import bleu, chrf, exact_match, pronoun_accuracy
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training.losses import next_token_loss


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Inputs and targets, each with eos."""
    if not all(isinstance(target, str) for target in examples["target"]):
        raise ValueError(
            "data.source yields several targets of a source, which task.name='text_to_text' takes"
        )
    sources, targets = (tokenizer.encode(examples[name]) for name in ("source", "target"))
    return paired(sources, targets, limits, tokenizer.special)


def _limit(prompt_tokens: Lengths, extra_length: int, most_positions: int | None) -> Lengths:
    """As many tokens as the source has, and some more, or as many as there are positions for."""
    most = prompt_tokens + extra_length
    return most if most_positions is None else np.minimum(most, most_positions)


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """Scores under flat names, and sacreBLEU's signatures of two of them.

    They are "bleu" and "chrf" (0 to 100), "exact_match" and, where a sentence has a pronoun,
    "pronoun_accuracy" (fractions).
    """
    sources, targets = split.examples["source"], split.examples["target"]
    hypotheses, references = tokens.one_text_each(trained, split), [[text] for text in targets]
    scores = bleu(hypotheses, references, trained.bleu_tokenizer) | chrf(hypotheses, references)
    scores |= exact_match(hypotheses, references)
    pronouns = split.examples.get("pronoun", ())
    if any(pronouns):
        scores["pronoun_accuracy"] = pronoun_accuracy(hypotheses, pronouns)
    return scores, samples(sources, targets, hypotheses)


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
