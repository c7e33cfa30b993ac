"""The loss of a trained model, scored with states that are carried from row to row and without."""

from pathlib import Path
from typing import Any

from experiments.harness import lab
from transformer_jax.config import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config


def measure(config: Config, workdir: Path, *, split: str) -> list[dict[str, Any]]:
    """A row for each way of scoring: the loss of a split in nats a word, over the same words."""
    params = lab.trained(build.build(config, workdir), workdir)
    if params is None:
        return []
    rows = []
    for scored in ("yes", "no"):
        run = build.build(replace(config, {"model.stateful": scored == "yes"}), workdir)
        losses = run.trained(params).losses(run.data.split(split))
        rows.append({"scored": scored, "loss": losses["token_loss"]})
    return rows
