"""The rows of table 3 of "Attention Is All You Need", around a small base model, on two tasks."""

from typing import Any

from experiments.harness.sweep import Run

# Letter of the paper's row, and what differs from the base.
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("base", {}),
    ("A", {"model.num_heads": 1, "model.head_dim": 64}),
    ("A", {"model.num_heads": 2, "model.head_dim": 32}),
    ("A", {"model.num_heads": 8, "model.head_dim": 8}),
    ("B", {"model.head_dim": 4}),
    ("B", {"model.head_dim": 8}),
    ("C", {"model.num_layers": 1}),
    ("C", {"model.num_layers": 4}),
    ("C", {"model.d_model": 32, "model.head_dim": 8}),
    ("C", {"model.d_model": 128, "model.head_dim": 32}),
    ("C", {"model.d_ff": 128}),
    ("C", {"model.d_ff": 512}),
    ("D", {"model.dropout_rate": 0.0, "model.embedding_dropout_rate": 0.0}),
    ("D", {"model.dropout_rate": 0.3, "model.embedding_dropout_rate": 0.3}),
    ("D", {"task.label_smoothing": 0.0}),
    ("D", {"task.label_smoothing": 0.2}),
    ("E", {"model.positions": "learned"}),
]
_QUICK = 3  # the first rows: base and two numbers of heads
_BASE = {
    "model.num_layers": 2,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.num_heads": 4,
    "model.head_dim": 16,
    "model.dropout_rate": 0.1,
    "model.embedding_dropout_rate": 0.1,
    "optimizer.learning_rate": 3e-3,
    "train.evaluate_every": 0,
    "checkpoint.best_metric": "",
    "decode.method": "greedy",
}


def cpu(quick: bool) -> list[Run]:
    """The embedded corpus, 400 steps."""
    return _rows(
        "cpu",
        "configs/quickstart.py",
        {"optimizer.warmup_steps": 100, "train.steps": 400, "checkpoint.every": 0},
        quick,
    )


def multi30k(quick: bool) -> list[Run]:
    """Captions, 1000 steps by the recipe of their config; needs --data_dir."""
    return _rows(
        "multi30k",
        "configs/multi30k.py",
        {
            "optimizer.warmup_steps": 8 if quick else 200,
            "train.steps": 40 if quick else 1000,
            "checkpoint.every": 250,
            "checkpoint.average_last": 1,
            "data.test": (),
            "decode.extra_length": 10,
        },
        quick,
    )


def _rows(part: str, config: str, task: dict[str, Any], quick: bool) -> list[Run]:
    """Two seeds; the quick sweep has one, of three rows."""
    return [
        Run(
            config=config,
            overrides={**_BASE, **task, **changes, "seed": seed},
            labels={"part": part, "row": letter, "change": _text(changes), "seed": seed},
        )
        for seed in range(1 if quick else 2)
        for letter, changes in ROWS[: _QUICK if quick else None]
    ]


def _text(changes: dict[str, Any]) -> str:
    """As "num_heads 1, head_dim 64"."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in changes.items())


SWEEPS = {"cpu": cpu, "multi30k": multi30k}
