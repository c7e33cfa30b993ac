"""Classification of images: one label for each image, by an encoder alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare import pictures
from transformer_jax.data.prepare.recipe import Column, Drawing, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.transforms import label_number, numbered
from transformer_jax.data.read.examples import Examples
from transformer_jax.data.read.images import NO_BOXES, ImageSettings
from transformer_jax.evaluation.scores import label_scores
from transformer_jax.evaluation.trained import Trained
from transformer_jax.models.family import Batch, Outputs
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training.losses import label_loss

_BEST = 5  # labels that are predicted, the likeliest first


def _encode(examples: Examples, images: ImageSettings, labels: Labels, limits: Limits) -> Encoding:
    """Pixels, their size, and the number of the label."""
    inputs, numbers = examples["image"], numbered(labels)
    columns, _ = pictures.stored(inputs, [NO_BOXES] * len(inputs), images)
    return columns | {"labels": [[label_number(one, numbers)] for one in examples["label"]]}, ()


@dataclasses.dataclass(frozen=True)
class Labelled(pictures.Patching):
    """Patches, and the label at the first place of an image."""

    def __call__(self, example: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        patches, _ = self.augmented(example, rng)
        return patches | {"labels": _first(example["labels"][0], len(patches["inputs"]))}


def _labelled(images: ImageSettings, drawing: Drawing) -> Labelled:
    return Labelled(images, drawing.training)


def _first(label: int, places: int) -> Int[np.ndarray, " T"]:
    """A label at the first of so many places."""
    labels = np.zeros(places, np.int32)
    labels[0] = label
    return labels


def _prompt(
    lines: Sequence[str], images: ImageSettings, labels: Labels, limits: Limits
) -> Encoding:
    """Images, a path a line, each with any label: there one is to be predicted."""
    columns = pictures.prompted(lines, images)
    return columns | {"labels": [_first(1, len(row)) for row in columns["inputs"]]}, ()


def _best(outputs: Outputs, batch: Batch) -> Int[Array, "B best"]:
    """The likeliest labels of each image, from 0; there is one in each row."""
    logits = outputs.arrays()[:, 0]
    return jax.lax.top_k(logits, min(_BEST, logits.shape[-1]))[1]


def _names(trained: Trained, batches: Any) -> list[list[str]]:
    """The likeliest labels of each image."""
    names = trained.data.labels
    return [[names[label] for label in row.tolist()] for row in trained.predict(batches)]


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """The "accuracy", the macro "f1", and how often the label is among the likeliest five."""
    best, expected = _names(trained, split.batches), split.examples["label"]
    labels = [first for first, *_ in best]
    scores = label_scores(labels, expected)
    scores["top5"] = float(np.mean([one in row for one, row in zip(expected, best, strict=True)]))
    return scores, samples(split.examples["image"], expected, labels)


def _results(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """The label of each image."""

    def labels(paths: Sequence[str]) -> list[list[str]]:
        return [[first] for first, *_ in _names(trained, trained.data.prompts(paths))]

    return tokens.of_full_lines(lines, labels)


TASK = Task(
    recipe=Recipe(
        name="image_classification",
        reads=("image", "label"),
        columns={**pictures.PATCHES, "labels": Column("source", along="inputs")},
        encode=_encode,
        prompt=_prompt,
        tokenized=False,
        corrupt=_labelled,
        encoded={**pictures.KEPT, "labels": Column("source")},
        labels="label",
    ),
    heads={"encoder_only": "image_classes"},
    loss=label_loss,
    predict=_best,
    score=_score,
    results=_results,
)
