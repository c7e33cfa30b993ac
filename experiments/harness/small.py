"""The small language model that the experiments on learning rates train, as overrides."""

from typing import Any

CONFIG = "configs/shakespeare.py"
HEAD_DIM = 16


def small(*, d_model: int = 64, num_layers: int = 3, steps: int) -> dict[str, Any]:
    """Characters of Shakespeare in 32 rows of 32, AdamW with an independent weight decay.

    Warm-up over a twentieth of the steps, then half a cosine; weight decay takes as much of the
    weights in any number of steps. Heads keep their size: so their number grows with the width.
    """
    return {
        "data.max_target_length": 32,
        "data.batch_size": 32,
        "model.num_layers": num_layers,
        "model.d_model": d_model,
        "model.num_heads": d_model // HEAD_DIM,
        "model.head_dim": HEAD_DIM,
        "model.d_ff": 4 * d_model,
        "model.tied_embeddings": "none",
        "optimizer.name": "adamw_independent",
        "optimizer.final_learning_rate": 0.0,
        "optimizer.warmup_steps": steps // 20,
        "optimizer.beta1": 0.9,
        "optimizer.beta2": 0.95,
        "optimizer.epsilon": 1e-8,
        "optimizer.weight_decay": 10 / steps,
        "train.steps": steps,
        "train.log_every": steps,
    }


def text(*, num_layers: int, d_model: int, steps: int, warmup_steps: int) -> dict[str, Any]:
    """Bytes of WikiText-2 in 16 rows of 64, AdamW with a decay that follows the rate, tied tables.

    A line to 0 after the warm-up. The last 111,540 characters of train.txt are for validation.
    """
    return {
        "data.train": ("train.txt",),
        "data.batch_size": 16,
        "model.num_layers": num_layers,
        "model.d_model": d_model,
        "model.num_heads": 4,
        "model.d_ff": 4 * d_model,
        "optimizer.name": "adamw",
        "optimizer.schedule": "linear",
        "optimizer.learning_rate": 4e-3,
        "optimizer.final_learning_rate": 0.0,
        "optimizer.warmup_steps": warmup_steps,
        "optimizer.beta2": 0.95,
        "train.steps": steps,
        "train.log_every": 10,
        "train.evaluate_every": 0,
        "checkpoint.every": 0,
        "checkpoint.best_metric": "",
    }
