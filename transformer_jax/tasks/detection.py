"""Detection: the boxes in an image and what each holds, as a set (Carion et al. 2020)."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.data.dataset import Split
from transformer_jax.data.prepare import pictures
from transformer_jax.data.prepare.recipe import Column, Drawing, Encoding, Labels, Limits, Recipe
from transformer_jax.data.prepare.transforms import label_number, numbered
from transformer_jax.data.read import images
from transformer_jax.data.read.boxes import BOXED, DIFFICULT, has_area, left_out
from transformer_jax.data.read.examples import Examples
from transformer_jax.data.read.images import FITS, ImageSettings
from transformer_jax.evaluation.boxes import Boxes, average_precision
from transformer_jax.evaluation.trained import Trained
from transformer_jax.models.family import Batch, Outputs
from transformer_jax.tasks import tokens
from transformer_jax.tasks.task import Sample, Scores, Task, samples
from transformer_jax.training import detection

LEAST_SCORE = 0.5  # of a box that is shown


def _encode(
    examples: Examples, settings: ImageSettings, labels: Labels, limits: Limits
) -> Encoding:
    """Pixels, and the boxes in them that are learnt: those with an area, and of no crowd."""
    numbers, too_long = numbered(labels), []
    inputs, shares, classes = [], [], []
    rows = zip(*(examples[name] for name in BOXED), strict=True)
    for number, (picture, size, boxes, names) in enumerate(rows):
        learnt = [n for n, box in enumerate(boxes) if has_area(box) and not box[5]]
        if len(learnt) > limits.target:
            too_long.append(number)
            if limits.too_long == "drop":
                continue
            learnt = learnt[: limits.target]
        inputs.append(picture)
        shares.append(np.array([boxes[n][:4] for n in learnt]).reshape(-1, 4) / _sides(size))
        try:
            targets = [label_number(name, numbers) for name in names]
        except ValueError as error:
            raise ValueError(f"{picture.name}: {error}") from None
        classes.append([targets[n] for n in learnt])
    columns, inside = pictures.stored(inputs, shares, settings)
    return columns | {"targets": classes, "boxes": inside}, too_long


def _sides(size: Sequence[int]) -> Float[np.ndarray, "4"]:
    """What corners as shares of an image are multiplied by. size: rows and columns."""
    rows, columns = size
    return np.array([columns, rows, columns, rows], np.float64)


@dataclasses.dataclass(frozen=True)
class _Patching(pictures.Patching):
    """Patches of an image, and what of its boxes is in them, as centres and sides."""

    def __call__(self, example: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        columns, boxes = self.augmented(example, rng, example["boxes"])
        low, high = np.split(np.clip(boxes, 0.0, 1.0), 2, axis=1)
        there = np.all(low < high, axis=1)
        shares = np.concatenate([(low + high) / 2, high - low], axis=1)[there]
        boxes = np.round(pictures.UNIT * shares).astype(np.int32)
        return columns | {"targets": example["targets"][there], "boxes": boxes}


def _patching(settings: ImageSettings, drawing: Drawing) -> _Patching:
    return _Patching(settings, drawing.training)


def _prompt(
    lines: Sequence[str], settings: ImageSettings, labels: Labels, limits: Limits
) -> Encoding:
    """The images that lines name."""
    return pictures.prompted(lines, settings), ()


def _likeliest(outputs: Outputs, batch: Batch) -> dict[str, Any]:
    """Of each query of the last layer its likeliest class, how likely it is, and the corners."""
    shares = jax.nn.softmax(outputs.values.logits[-1])[..., :-1]
    corners = jnp.concatenate(detection.corners(outputs.values.boxes[-1]), axis=-1)
    classes, scores = jnp.argmax(shares, axis=-1), jnp.max(shares, axis=-1)
    return {"classes": classes, "scores": scores, "boxes": corners}


def _detections(trained: Trained, prediction: Mapping[str, Any], size: Sequence[int]) -> Boxes:
    """What is told of an image of so many rows and columns, the surest first."""
    settings = trained.data.settings.images
    assert settings is not None  # the task reads images
    rows, columns = size
    (x0, y0, x1, y1), _ = FITS[settings.fit](rows, columns, settings.size, settings.patch_size)
    shares = prediction["boxes"] * ([x1 - x0, y1 - y0] * 2) + [x0, y0] * 2
    boxes = _bbox(np.clip(shares, 0.0, 1.0) * _sides(size))
    queries = zip(boxes, prediction["classes"].tolist(), prediction["scores"].tolist(), strict=True)
    detections = [{"bbox": box, "category_id": of, "score": score} for box, of, score in queries]
    return sorted(detections, key=lambda row: -row["score"])


def _bbox(corners: Any) -> list[list[float]]:
    """x, y, width and height of boxes, to a hundredth of a pixel."""
    low, high = np.split(np.reshape(corners, (-1, 4)), 2, axis=1)
    return np.round(np.concatenate([low, high - low], axis=1), 2).tolist()


def _of_split(trained: Trained, split: Split) -> tuple[list[Boxes], list[Boxes]]:
    """The true boxes of each image of a split, and what is told of it."""
    examples, numbers = split.examples, {name: n for n, name in enumerate(trained.data.labels)}
    truths: list[Boxes] = []
    for boxes, names in zip(examples["boxes"], examples["labels"], strict=True):
        rows = zip(_bbox([box[:4] for box in boxes]), boxes, names, strict=True)
        truths.append(
            [
                {"bbox": bbox, "category_id": numbers[name], "area": box[4]}
                | {"iscrowd": int(box[5] > 0), "difficult": int(box[5] == DIFFICULT)}
                for bbox, box, name in rows
                if has_area(box)
            ]
        )
    predictions = zip(trained.predict(split.batches), examples["size"], strict=True)
    return truths, [_detections(trained, prediction, size) for prediction, size in predictions]


def _losses(trained: Trained, split: Split) -> dict[str, float]:
    """The means, and AP at an IoU of 0.5 with and without regard to classes."""
    scores = average_precision(*_of_split(trained, split), trained.data.labels)
    some = {name: scores[name] for name in ("ap50", "ap50_any") if name in scores}
    return trained.losses(split) | some


def _score(trained: Trained, split: Split) -> tuple[Scores, list[Sample]]:
    """COCO's scores, and the boxes of a few images: label, x, y, width and height."""
    truths, detections = _of_split(trained, split)
    names = trained.data.labels
    texts = [
        [
            json.dumps([[names[row["category_id"]], *map(round, row["bbox"])] for row in rows])
            for rows in side
        ]
        for side in (truths, [_sure(rows) for rows in detections])
    ]
    return average_precision(truths, detections, names), samples(split.examples["image"], *texts)


def _sure(boxes: Boxes) -> Boxes:
    return [row for row in boxes if row["score"] >= LEAST_SCORE]


def _results(trained: Trained, lines: Sequence[str]) -> list[list[str]]:
    """A JSON object for each image: of a path, or of pixels, which are called by their number."""

    def objects(inputs: Sequence[str | Path | np.ndarray]) -> list[list[str]]:
        rows = []
        predictions = trained.predict(trained.data.prompts(inputs))
        for number, (one, prediction) in enumerate(zip(inputs, predictions, strict=True)):
            file = str(one) if isinstance(one, str | Path) else f"image {number}"
            (picture,) = pictures.by_hand([one])
            row = _object(trained, file, images.size_of(picture), prediction)
            rows.append([json.dumps(row, ensure_ascii=False)])
        return rows

    return tokens.of_full_lines(lines, objects)


def _object(
    trained: Trained, file: str, size: tuple[int, int], prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """The boxes of a file with a score of `LEAST_SCORE` at least, in pixels, the surest first:
    {"file", "boxes": [[x0, y0, x1, y1]], "labels", "scores", "coco"}.

    "coco" has the same as COCO's results do, and names. An image's id is the number that its file
    is called by, or else that name; a class's is its place among the run's labels, from 0, which is
    COCO's own where these were imported with a model of COCO.
    """
    stem = Path(file).stem
    rows = _sure(_detections(trained, prediction, size))
    number = int(stem) if stem.isdecimal() else stem
    labels = [trained.data.labels[row["category_id"]] for row in rows]
    corners = [[x, y, x + width, y + height] for x, y, width, height in (r["bbox"] for r in rows)]
    return {
        "file": file,
        "boxes": np.round(corners, 2).tolist(),
        "labels": labels,
        "scores": [round(row["score"], 4) for row in rows],
        "coco": [
            row | {"image_id": number, "category_name": label}
            for row, label in zip(rows, labels, strict=True)
        ],
    }


def _judge(means: Mapping[str, float], trained: Trained) -> tuple[str, dict[str, float]]:
    """Diverged where the loss is no number."""
    return "finished" if math.isfinite(means["loss"]) else "diverged", {"train/loss": means["loss"]}


_BOXES = {"targets": Column("target"), "boxes": Column("target", along="targets", shape=(4,))}
_SHARES = {"boxes": Column("target", along="targets", shape=(4,), dtype="float32")}

TASK = Task(
    recipe=Recipe(
        name="detection",
        reads=BOXED,
        columns=pictures.PATCHES | _BOXES,
        encode=_encode,
        prompt=_prompt,
        tokenized=False,
        corrupt=_patching,
        encoded=pictures.KEPT | _BOXES | _SHARES,
        labels="labels",
        fewest_labels=1,  # the other class is none
        left_out=left_out,
        version=1,  # boxes say whether they are difficult or crowds
    ),
    heads={"encoder_set": "boxes"},
    loss=detection.set_loss,
    metrics=detection.METRICS,
    totals=detection.totals,
    means=detection.means,
    predict=_likeliest,
    judge=_judge,
    losses=_losses,
    score=_score,
    results=_results,
    settings=("task.box_weights", "task.no_object_weight", "task.auxiliary_losses"),
)
