"""The attention page of models that read images: where patches and queries look, on the picture."""

import base64
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.data.read import images
from transformer_jax.devices.mesh import constrain
from transformer_jax.evaluation.trained import Trained
from transformer_jax.inspection.attention import attention
from transformer_jax.models.layers.heads import Boxes
from transformer_jax.process import progress
from transformer_jax.run import Run
from transformer_jax.tasks.detection import LEAST_SCORE
from transformer_jax.tools.pages import look as texts
from transformer_jax.tools.pages import positions
from transformer_jax.tools.pages.page import numbers, page

_SAMPLES = 6  # images of validation that are shown
_CENTRES = 500  # those in which the centres of each query's boxes are shown


def look(run: Run, trained: Trained, lines: Sequence[str], title: str) -> str:
    """The page as HTML, of images, a path a line; without lines, of the first of validation.

    Raises ValueError or OSError where one cannot be read, or the model says no numbers of it.
    """
    names: Sequence[str] = [line for line in lines if line.strip()]
    boxes = None
    if names:
        batches = run.data.prompts(names)
    else:
        split = run.data.split("validation")
        names, batches = split.examples["image"][:_SAMPLES], split.batches
        if run.model.config.architecture == "encoder_set":
            predictions = trained.predict(batches)[:_CENTRES]
            boxes = numbers(np.stack([one["boxes"] for one in predictions], axis=1))
    data = {
        "texts": _views(run, trained, names, batches),
        "labels": trained.data.labels,
        "least": LEAST_SCORE,
        "positions": positions.figures(run.model.config, trained.params, 0),
        "boxes": boxes,  # by query and image
    }
    scripts = ["plots.js", "pictures.js", *texts.SCRIPTS[1:]]
    return page(title, data, styles=["look.css"], scripts=scripts)


def _views(
    run: Run, trained: Trained, names: Sequence[str], batches: Sequence[Any]
) -> list[dict[str, Any]]:
    @jax.jit
    def passed(params: Any, batch: Any) -> tuple[Any, ...]:
        return jax.tree.map(constrain, attention(run.model, params, batch)[:2])

    views, devices = [], run.mesh.shape["data"] * run.mesh.shape["fsdp"]
    rows = {  # copies, so that no batch is kept
        number: {key: np.repeat(array[row : row + 1], devices, 0) for key, array in batch.items()}
        for batch, numbers in batches
        for row, number in enumerate(numbers)
        if 0 <= number < len(names)
    }
    with progress.phase("Looking"):
        for number, name in enumerate(names):
            outputs, looks = jax.device_get(passed(trained.params, rows[number]))
            texts.check_finite(outputs, name)
            views.append(_view(run, name, rows[number], outputs, looks))
    return views


def _view(run: Run, name: str, batch: Any, outputs: Any, looks: Any) -> dict[str, Any]:
    """What the page holds of an image: what is said of it is one row of logits, or a row and a box
    (centre, width and height, as shares) of each query."""
    settings, there = run.data.settings.images, batch["inputs_segment_ids"][0] > 0
    assert settings is not None  # the task reads images
    patches, grid = batch["inputs"][0][there], batch["grid"][0][there]
    png = images.png(images.joined(patches, grid, settings))
    boxes = outputs.boxes[-1, 0] if isinstance(outputs, Boxes) else ()
    logits = outputs.logits[-1, 0] if isinstance(outputs, Boxes) else outputs[0, :1]
    return {
        "line": name,
        "maps": texts.maps(texts.of_first(looks, {"inputs": grid, "targets": boxes})),
        "png": f"data:image/png;base64,{base64.b64encode(png).decode()}",
        "grid": grid[-1, 2:].tolist(),
        "before": settings.prefix_tokens,
        "logits": np.asarray(logits, np.float64).tolist(),
        "boxes": np.asarray(boxes, np.float64).tolist(),
    }
