"""Text to text: an answer from a text, whatever is asked, by an encoder-decoder.

As in T5 (Raffel et al. 2020, arXiv 1910.10683): a prefix says what is asked, so that one model can
do several things. Parts of the data are mixed by weight and scored apart.
"""

import functools
import operator
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging
from jaxtyping import Bool

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import paired, prompt_sources
from transformer_jax.data.read.examples import Examples, listed
from transformer_jax.evaluation.decoder import Lengths
from transformer_jax.evaluation.scores import METRICS, References
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training.losses import next_token_loss


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Inputs and targets, each with eos. Of several right targets the first is learned."""
    sources = tokenizer.encode(examples["source"])
    targets = tokenizer.encode([references[0] for references in map(listed, examples["target"])])
    return paired(sources, targets, limits, tokenizer.special)


def _limit(prompt_tokens: Lengths, extra_length: int, most_positions: int | None) -> Lengths:
    """`extra_length`, or as many as there are positions for: an answer may be short."""
    most = extra_length if most_positions is None else min(extra_length, most_positions)
    return np.full_like(prompt_tokens, most)


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """The scores of all parts, with and without what training has seen (see `score`)."""
    hypotheses = tokens.one_text_each(trained, split)
    references = list(map(listed, split.examples["target"]))
    try:
        seen = split.in_train()
    except FileNotFoundError as error:
        logging.warning("it is not known which examples training has seen: %s", error)
        seen = np.zeros(len(hypotheses), bool)
    parts = {
        part.name: (part.metrics, split.parts[part.name])
        for part in trained.data.settings.named
        if part.name in split.parts
    }
    scores = score(hypotheses, references, parts, seen, bleu_tokenizer=trained.bleu_tokenizer)
    firsts = [texts[0] for texts in references]
    return scores, samples(split.examples["source"], firsts, hypotheses)


def score(
    hypotheses: Sequence[str],
    references: References,
    parts: Mapping[str, tuple[Sequence[str], Sequence[int]]],
    seen: Bool[np.ndarray, " texts"],
    *,
    bleu_tokenizer: str,
) -> Scores:
    """Scores under flat names.

    Args:
      parts: by name what each is scored by, and the numbers of its texts. A name may be empty.
      seen: whether the training split has the example too.

    Returns:
      "PART/NAME" for each part; without a part in their name, means of the numbers that all parts
      have. Where some of the examples were seen, all of that again for the others, as "unseen/...";
      "repeats", the number of those seen.
    """

    def of(wanted: Bool[np.ndarray, " texts"]) -> Scores:
        scores = {}
        for name, (metrics, numbers) in parts.items():
            rows = [number for number in numbers if wanted[number]]
            if rows:
                ours, theirs = [hypotheses[n] for n in rows], [references[n] for n in rows]
                each = (METRICS[metric](ours, theirs, bleu_tokenizer) for metric in metrics)
                scores[name] = functools.reduce(operator.or_, each, {})
        return _flat(scores, list(parts))

    scores = of(np.ones_like(seen)) | {"repeats": int(seen.sum())}
    if seen.any() and not seen.all():
        scores |= {f"unseen/{name}": value for name, value in of(~seen).items()}
    return scores


def _flat(scores: dict[str, Scores], parts: Sequence[str]) -> Scores:
    """Scores by part under flat names, and the mean of each number that all these parts have."""
    flat = {
        f"{part}/{name}" if part else name: value
        for part, row in scores.items()
        for name, value in row.items()
    }
    every = [scores.get(part, {}) for part in parts]
    means = {
        name: sum(row[name] for row in every) / len(every)
        for name, value in every[0].items()
        if isinstance(value, float) and all(name in row for row in every)
    }
    return means | flat


TASK = Task(
    recipe=Recipe(
        name="text_to_text",
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
    settings=("data.parts", "evaluate.metrics", "evaluate.bleu_tokenizer"),
)
