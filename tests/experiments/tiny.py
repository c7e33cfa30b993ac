"""The small model of the experiments on learning rates, smaller, on letters that are made here."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import ROOT
from experiments.harness.trainings import Trainings
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.configs.default import Config

TEXT = "".join(chr(97 + (i * i + i // 7) % 26) for i in range(2_000))


def config(folder: Path, steps: int, changes: dict[str, Any], text: str = TEXT) -> Config:
    """Its config, with the text in `folder`."""
    (folder / "input.txt").write_text(text)
    tiny = {
        "data.dir": str(folder),
        "data.cache_dir": str(folder),
        "data.validation_size": 200,
        "data.max_target_length": 8,
        "data.batch_size": 8,
        "model.d_ff": 16,
        "evaluate.batch_size": 8,
    }
    shapes = small(d_model=16, num_layers=1, steps=steps)
    return load(str(ROOT / CONFIG), shapes | tiny | changes)


@contextlib.contextmanager
def shared(measure: Any, config: Config) -> Iterator[Trainings]:
    """The trainings of a config; a module `measure` makes no others, so they are compiled once."""
    trainings = Trainings(build(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "Trainings", lambda run: trainings)
        yield trainings
