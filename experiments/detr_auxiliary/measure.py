"""Average precision of what each decoder layer of a trained DETR tells."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.configs.default import Config
from transformer_jax.models.family import Batch, Outputs


def measure(config: Config, workdir: Path, *, split: str) -> list[dict[str, Any]]:
    """A row for each decoder layer, from 1."""
    run = build.build(config, workdir)
    params = lab.trained(run, workdir)
    if params is None:
        return []
    rows = []
    for layer in range(config.model.num_decoder_layers):

        def predict(outputs: Outputs, batch: Batch, layer: int = layer) -> dict[str, Any]:
            to_there = jax.tree.map(lambda leaf: leaf[: layer + 1], outputs.values)
            return run.task.predict(outputs._replace(values=to_there), batch)

        task = dataclasses.replace(run.task, predict=predict)
        layer_run = dataclasses.replace(run, task=task)
        scores, _ = task.score(layer_run.trained(params), run.data.split(split))
        rows.append({"layer": layer + 1, "ap": scores["ap"], "ap50": scores["ap50"]})
    return rows
