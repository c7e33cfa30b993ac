"""Cross-entropy by a slow NumPy reading of PyTorch's CrossEntropyLoss(label_smoothing)."""

from typing import Any

import numpy as np

from tests.defaults import loss_settings
from transformer_jax.training.cross_entropy import METRICS

B, T, V = 2, 5, 7
SETTINGS = loss_settings(0.1, 0.01)


def make_case() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(B, T, V)).astype(np.float32)
    targets = rng.integers(V, size=(B, T)).astype(np.int32)
    weights = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.float32)
    return logits, targets, weights


def reference(logits, targets, weights, label_smoothing, z_loss):
    """Token by token in float64, from the full target distribution."""
    sums = dict.fromkeys(METRICS, 0.0)
    for b, t in np.ndindex(B, T):
        row = logits[b, t].astype(np.float64)
        log_z = np.log(np.sum(np.exp(row)))
        log_p = row - log_z
        wanted = np.full(V, label_smoothing / V)
        wanted[targets[b, t]] += 1 - label_smoothing
        sums["loss"] += weights[b, t] * (-wanted @ log_p + z_loss * log_z**2)
        sums["token_loss"] += weights[b, t] * -log_p[targets[b, t]]
        top = np.flatnonzero(row == row.max())
        sums["accuracy"] += weights[b, t] * (targets[b, t] in top) / len(top)
    return sums
