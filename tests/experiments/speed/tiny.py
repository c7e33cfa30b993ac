"""Runs of a tiny model that need no data."""

from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from transformer_jax.config import build
from transformer_jax.config.load import load
from transformer_jax.data.prepare import tokenizer
from transformer_jax.run import Run
from transformer_jax.runs.workdir import TOKENIZER

SIZES = {
    "model.vocab_size": 400,
    "model.num_layers": 3,
    "model.d_model": 8,
    "model.num_heads": 2,
    "model.d_ff": 24,
    "data.batch_size": 8,
    "data.max_target_length": 6,
    "data.row_target_length": 6,
}
SOURCE = {"data.max_source_length": 6, "data.row_source_length": 6}
DECODER = {"model.architecture": "decoder_only"}


def config(changes: dict[str, Any]):
    """The default config at tiny sizes."""
    return load(str(ROOT / "configs/default.py"), SIZES | changes)


def run(changes: dict[str, Any], workdir: Path) -> Run:
    """A run, with a tokenizer of bytes."""
    tokenizer.train_tokenizer("bytes", (), 0, [tokenizer.MASK]).save(workdir / TOKENIZER)
    return build.build(config(changes), workdir)
