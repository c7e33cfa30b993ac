"""The time of a training step by length, and translation by recurrent models and a Transformer."""

from typing import Any

from experiments.harness.sweep import Run, grid

_TOKENS = 4096  # of a step whose time is taken
_LENGTHS = (16, 32, 64, 128, 256, 512, 1024)

# Models of equal width.
_WIDE: dict[str, dict[str, Any]] = {
    "lstm": {"model.family": "recurrent", "model.recurrence": "lstm"},
    "gru": {"model.family": "recurrent", "model.recurrence": "gru"},
    "transformer": {"model.num_heads": 4, "model.d_ff": 1024},
}

# Translators of about 0.6 million parameters beside their tables, all with rows of one size.
_RECURRENT: dict[str, dict[str, Any]] = {
    "without attention": {"model.recurrence": "rnnencdec", "model.d_model": 128},
    "rnnsearch": {"model.recurrence": "rnnsearch", "model.d_model": 128},
    "gnmt": {"model.recurrence": "gnmt", "model.num_layers": 2, "model.d_model": 96},
}
_TRANSFORMER = {
    "data.max_source_length": 32,
    "data.max_target_length": 32,
    "data.row_source_length": 32,
    "data.row_target_length": 32,
    "data.batch_size": 64,
    "model.d_model": 96,
    "model.num_heads": 4,
    "model.d_ff": 384,
}


def cpu(quick: bool) -> list[Run]:
    """Times of steps, then the embedded corpus over two seeds."""
    timed = [_timed(name, quick) for name in _WIDE]
    rows = grid(seed=range(1 if quick else 2), model=[*_RECURRENT, "transformer"])
    return timed + [_translator(row, {"train.steps": 60 if quick else 400}) for row in rows]


def _timed(name: str, quick: bool) -> Run:
    lengths = _LENGTHS[:2] if quick else _LENGTHS
    return Run(
        config="configs/default.py",
        overrides={
            "data.tokenizer.kind": "bytes",
            "data.packing": False,
            "data.streams": 1,
            "task.label_smoothing": 0.0,
            "model.architecture": "decoder_only",
            "model.num_layers": 2,
            "model.d_model": 256,
            "model.dropout_rate": 0.0,
            "model.embedding_dropout_rate": 0.0,
            "optimizer.clip_norm": 1.0,
            **_WIDE[name],
        },
        labels={"part": "time", "model": name},
        train=False,
        measure={
            "lengths": lengths,
            "tokens": 512 if quick else _TOKENS,
            "rounds": 1 if quick else 5,
        },
    )


def _translator(labels: dict[str, Any], changes: dict[str, Any]) -> Run:
    recurrent = labels["model"] in _RECURRENT
    return Run(
        config="configs/rnnsearch.py" if recurrent else "configs/quickstart.py",
        overrides={
            **(_RECURRENT[labels["model"]] if recurrent else _TRANSFORMER),
            "train.evaluate_every": 0,
            "checkpoint.every": 0,
            "checkpoint.best_metric": "",
            "decode.method": "greedy",
            "seed": labels["seed"],
            **changes,
        },
        labels={"part": "embedded", **labels},
        measure={"bounds": (12, 15, 18)},
    )


SWEEPS = {"cpu": cpu}
JOBS = 1  # they take times
