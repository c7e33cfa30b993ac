"""Tagging: one label for each word, by an encoder alone."""

import itertools
import operator
import re
from collections.abc import Sequence

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import label_number, labelled, numbered
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.scores import NOTHING, is_span_tag, label_scores, span_f1
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training.losses import label_loss


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Sentences between bos and eos, and the tag of each word at its first token."""
    sentences, places, numbers = [], [], numbered(labels)
    encoded = tokenizer.encode_words(examples["words"])
    for word_ids, tags in zip(encoded, examples["tags"], strict=True):
        sentences.append(list(itertools.chain.from_iterable(word_ids)))
        place = [0]
        for ids, tag in zip(word_ids, tags, strict=True):
            place += [label_number(tag, numbers), *[0] * (len(ids) - 1)]
        places.append(place)
    return labelled(sentences, places, limits, tokenizer.special)


def _prompt(lines: Sequence[str], tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Lines of words separated by blanks, each word with any tag, to be predicted."""
    words = [re.findall(r"[^ \t]+", line) for line in lines]  # as in CoNLL files
    examples = {"words": words, "tags": [[labels[0]] * len(row) for row in words]}
    return _encode(examples, tokenizer, labels, limits._replace(too_long="truncate"))


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    tags = tokens.labels(trained, split.batches)
    words, expected = split.examples["words"], split.examples["tags"]
    texts = ([" ".join(row) for row in rows] for rows in (words, expected, tags))
    return score(tags, expected), samples(*texts)


def score(predicted: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> Scores:
    """Scores of the tags of words, as fractions.

    A sentence that was cut off has fewer predicted tags: the missing ones count as wrong.

    Returns:
      "accuracy" and macro "f1" over all words, "exact_match" (sentences without a mistake) and,
      where every tag is O, B-x or I-x, "span_f1" (a missing tag is O).
    """
    expected = [list(sentence) for sentence in tags]
    filled = [
        [*ours, *[NOTHING] * (len(theirs) - len(ours))]
        for ours, theirs in zip(predicted, expected, strict=True)
    ]
    words = list(itertools.chain(*filled))
    expected_words = list(itertools.chain(*expected))
    scores = label_scores(words, expected_words)
    scores["exact_match"] = sum(map(operator.eq, filled, expected)) / len(expected)
    if all(map(is_span_tag, {*words, *expected_words} - {NOTHING})):
        outside = [["O" if tag == NOTHING else tag for tag in row] for row in filled]
        scores["span_f1"] = span_f1(outside, expected)
    return scores


def _results(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """The tags of each line's words, separated by blanks."""
    return [[" ".join(tags)] for tags in tokens.labels_of_lines(trained, lines)]


TASK = Task(
    recipe=Recipe(
        name="tagging",
        reads=("words", "tags"),
        columns={"inputs": Column("source"), "labels": Column("source", along="inputs")},
        encode=_encode,
        prompt=_prompt,
        labels="tags",
    ),
    heads={"encoder_only": "tags"},
    loss=label_loss,
    predict=tokens.likeliest_labels,
    score=_score,
    results=_results,
)
