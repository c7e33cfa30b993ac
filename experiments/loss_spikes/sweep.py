"""Constant learning rates; then, at three times the best, conditions that may make losses jump."""

from typing import Any

from experiments.harness.small import CONFIG, small
from experiments.harness.sweep import Run

# The best constant rate that `rates` measured.
BEST_RATE = 0.00711
RATE = 3 * BEST_RATE
RATES = [2.0**exponent for exponent in range(-11, -5)]
BETA2S = [0.9, 0.95, 0.99, 0.999]
# Of the embedding's conditions, which are without clipping.
EMBEDDING_BETA2 = 0.999
# Before the odd batch, and after it: every second step.
CURVATURE = range(-20, 31, 2)


def _base(quick: bool) -> dict[str, Any]:
    shape = {"d_model": 32, "num_layers": 2} if quick else {"d_model": 64, "num_layers": 6}
    steps = 400 if quick else 3_000
    return small(**shape, steps=steps) | {"optimizer.schedule": "constant"}


def _clips(base: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each clips."""
    return {
        "none": {"optimizer.clip_norm": 0.0},
        "gradient": {"optimizer.clip_norm": 1.0},
        "update": {
            "optimizer.clip_norm": 0.0,
            "optimizer.name": "stable_adamw",
            # Its decay is a share of the learning rate; so as much decays as in the others.
            "optimizer.weight_decay": base["optimizer.weight_decay"] / RATE,
        },
    }


# The draw of looked up rows has variance 1 / width; by default they are multiplied by its root.
_EMBEDDINGS = {
    "scaled": {},
    "small": {"model.embedding_scale": 1.0},
    "normed": {"model.embedding_scale": 1.0, "model.embedding_norm": True},
}


def rates(quick: bool) -> list[Run]:
    """The base at constant learning rates, without odd batches; two seeds."""
    arguments = {"learning_rates": RATES[::3] if quick else RATES, "seeds": 1 if quick else 2}
    labels = {"measured": "rates"}
    base = _base(quick)
    return [Run(config=CONFIG, overrides=base, labels=labels, train=False, measure=arguments)]


def spikes(quick: bool) -> list[Run]:
    """What is clipped by beta2, then embeddings; three seeds, and of one the curvature."""
    base = _base(quick)
    clips, injected = _clips(base), base["train.steps"] // 2
    cells = [(beta2, clip, "scaled") for clip in clips for beta2 in BETA2S]
    cells += [(EMBEDDING_BETA2, "none", embedding) for embedding in ("small", "normed")]
    if quick:
        cells = [(EMBEDDING_BETA2, clip, "scaled") for clip in clips]
    offsets = CURVATURE[::5] if quick else CURVATURE
    read = [injected + offset for offset in offsets]
    return [
        Run(
            config=CONFIG,
            overrides=base | clips[clip] | {"optimizer.beta2": beta2} | _EMBEDDINGS[embedding],
            labels={"beta2": beta2, "clip": clip, "embedding": embedding},
            train=False,
            measure={
                "learning_rate": RATE,
                "seeds": 1 if quick else 3,
                "injected": injected,
                "curvature": read if (clip, embedding) == ("none", "scaled") else [],
            },
        )
        for beta2, clip, embedding in cells
    ]


SWEEPS = {"rates": rates, "spikes": spikes}
