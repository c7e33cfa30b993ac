"""The command line in one process, on a tiny corpus."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.defaults import SMALL
from transformer_jax import main

CONFIG = SMALL | {
    "seed": 3,
    "data.source": "text",
    "data.validation": ("test",),
    "data.row_source_length": 8,
    "data.row_target_length": 8,
    "data.batch_size": 8,
    "model.residual": "pre_ln",
    "optimizer.schedule": "constant",
    # High enough to learn more in six steps than how often each word occurs.
    "optimizer.learning_rate": 0.1,
    "optimizer.beta1": 0.5,
    "optimizer.beta2": 0.9,
    "optimizer.warmup_steps": 0,
    "train.steps": 6,
    "train.log_every": 2,
    "checkpoint.every": 2,
    "decode.extra_length": 2,
    "decode.beam_size": 2,
}
# The other shapes, by the names of their work directories.
OTHERS = {
    "language_model": {
        "model.architecture": "decoder_only",
        "data.train": ("train.en",),
        "data.validation": ("test.en",),
        "data.test": (),
        "train.ema_decay": 0.9,
        "optimizer.name": "muon",
        "decode.method": "sample",
    },
    "masked": {
        "model.architecture": "encoder_only",
        "data.train": ("train.en",),
        "data.validation": ("test.en",),
        "data.test": ("test.en",),
        "optimizer.name": "lion",
    },
    # Starts from "masked", and stays there.
    "classes": {
        "model.architecture": "encoder_only",
        "task.name": "classification",
        "data.source": "labelled",
        "data.train": ("train.labelled",),
        "data.validation": ("test.labelled",),
        "data.test": ("test.labelled",),
        "optimizer.learning_rate": 0.0,
    },
}

# What runs in processes of their own train on: lines of text, by their bytes.
BYTES = {
    "data.source": "text",
    "data.validation": (),
    "data.tokenizer.kind": "bytes",
    "data.max_source_length": 16,
    "data.row_source_length": 24,
    "data.batch_size": 8,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "optimizer.learning_rate": 0.01,
    "checkpoint.keep_last": 2,
}


def call(*arguments: str) -> int:
    """Does what the process does, short of ending; returns its exit status."""
    return main.call(["main", *arguments])


def piped(monkeypatch, text: str, *arguments: str) -> list[str]:
    """What `call` writes to standard output, in pieces, with `text` as its standard input."""
    pieces: list[str] = []
    buffer = SimpleNamespace(write=lambda data: pieces.append(data.decode()), flush=lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        patch.setattr(sys, "stdout", SimpleNamespace(buffer=buffer, flush=buffer.flush))
        assert call(*arguments) == 0
    return pieces


def results(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "results.json").read_text())


def records(workdir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the times."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [timeless(json.loads(line)) for line in lines]


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("time/")}


def files(folder: Path) -> dict[Path, int]:
    """Every file below a folder, and when it was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def message_of(folder, capsys, arguments: str) -> str:
    """The one message that a mistaken command line ends with; "@" stands for the folder in it."""
    capsys.readouterr()
    assert call(*[argument.replace("@", str(folder)) for argument in arguments.split()]) == 1
    message = capsys.readouterr().err
    assert message.count("error: ") == 1 and "Traceback" not in message
    assert not (folder / "new" / "config.json").exists()
    return message
