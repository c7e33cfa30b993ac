"""Classification: one label for each text, by an encoder alone."""

from collections.abc import Sequence

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare.recipe import Column, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.prepare.transforms import between, label_number, labelled, numbered
from transformer_jax.data.read.examples import Examples
from transformer_jax.evaluation.scores import label_scores, matthews
from transformer_jax.evaluation.trained import Trained
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training.losses import label_loss


def _encode(examples: Examples, tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Texts between bos and eos, and the label of each at its bos."""
    sentences, numbers = tokenizer.encode(examples["text"]), numbered(labels)
    places = [
        [label_number(label, numbers), *[0] * len(ids)]
        for ids, label in zip(sentences, examples["label"], strict=True)
    ]
    return labelled(sentences, places, limits, tokenizer.special)


def _prompt(lines: Sequence[str], tokenizer: Tokenizer, labels: Labels, limits: Limits) -> Encoding:
    """Texts between bos and eos, each with any label at its bos: there one is to be predicted."""
    inputs, too_long = between(tokenizer.encode(lines), limits.source, tokenizer.special)
    return {"inputs": inputs, "labels": [[1] + [0] * (len(ids) - 1) for ids in inputs]}, too_long


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """The "accuracy", the macro "f1" and the "matthews" correlation."""
    labels = [label for (label,) in tokens.labels(trained, split.batches)]
    expected = split.examples["label"]
    scores = label_scores(labels, expected) | {"matthews": matthews(labels, expected)}
    return scores, samples(split.examples["text"], expected, labels)


TASK = Task(
    recipe=Recipe(
        name="classification",
        reads=("text", "label"),
        columns={"inputs": Column("source"), "labels": Column("source", along="inputs")},
        encode=_encode,
        prompt=_prompt,
        labels="label",
    ),
    heads={"encoder_only": "classes"},
    loss=label_loss,
    predict=tokens.likeliest_labels,
    score=_score,
    results=tokens.labels_of_lines,
)
