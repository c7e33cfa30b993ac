"""Batches from 1 row to 256, as many tokens for each: beta2, optimizers, noise, critical sizes."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run

LENGTH = 64  # bytes of a row
RATE, AT = 4e-3, 16  # AdamW's learning rate at so many rows, from which searches start
HALF_LIVES = [3e3, 3e4, 3e5]  # tokens
# Where the searches of learning rates start, at 16 rows.
OPTIMIZERS = {"adamw": RATE, "sgd": 0.5, "adafactor": 3e-2}
WIDTHS = [16, 32, 64]
SIZES = [4, 16, 64, 256]  # rows, of `critical`
# Steps of the largest batch, so that all sizes are read after as many tokens: about half an octave
# apart. Every other one from the third on, at which the best batch sets the loss, is a target.
READINGS = [6, 8, 12, 17, 24, 34, 48, 68]
FIRST_TARGET = 2


def _run(
    quick: bool,
    batch: int,
    tokens: int,
    labels: dict[str, Any],
    measure: dict[str, Any],
    **overrides: Any,
) -> Run:
    """A process that trains an arm with as many learning rates and seeds as it needs."""
    steps = tokens // (batch * LENGTH)
    base = text(num_layers=3, d_model=64, steps=steps, warmup_steps=max(1, steps // 20))
    base |= {
        "data.batch_size": batch,
        "data.streams": 1,  # one order of rows for all sizes of batches
        "optimizer.clip_norm": 0.0,
        "optimizer.weight_decay": 0.0,
    }
    fresh = {"fresh": 1 if quick else 2}
    return Run(
        config=CONFIG,
        overrides=base | {key.replace("__", "."): value for key, value in overrides.items()},
        labels=labels | {"batch": batch},
        train=False,
        measure=fresh | measure,
    )


def _tuned(
    quick: bool, batch: int, tokens: int, labels: dict[str, Any], rate: float, **overrides
) -> Run:
    start = rate * (batch / AT) ** 0.5
    measure = {"part": "tuned", "start": start, "most": 3 if quick else 5}
    return _run(quick, batch, tokens // (64 if quick else 1), labels, measure, **overrides)


def _beta2(half_life: float | None) -> dict[str, Any]:
    """As it is; or of a half-life in tokens, besides which a beta2 has to be the default's."""
    default = {"optimizer__beta2": 0.98, "optimizer__beta2_half_life": half_life}
    return default if half_life else {}


def beta2(quick: bool) -> list[Run]:
    """beta2 fixed, and by three half-lives in tokens, at four sizes of a batch."""
    return [
        _tuned(
            quick,
            batch,
            2**19,
            {"part": "beta2", "arm": "0.95" if half_life is None else f"{half_life:g} tokens"},
            RATE,
            **_beta2(half_life),
        )
        for batch in ([1, 16] if quick else [1, 4, 16, 64])
        for half_life in (None, *(HALF_LIVES[1:2] if quick else HALF_LIVES))
    ]


def optimizers(quick: bool) -> list[Run]:
    """SGD without momentum, Adafactor and AdamW at three sizes."""
    return [
        _tuned(
            quick,
            batch,
            2**20,
            {"part": "optimizers", "arm": name},
            rate,
            optimizer__name=name,
            **(_beta2(HALF_LIVES[1]) if name == "adamw" else {"optimizer__beta2": 0.98}),
        )
        for batch in ([1, 64] if quick else [1, 16, 256])
        for name, rate in OPTIMIZERS.items()
    ]


def noise(quick: bool) -> list[Run]:
    """The noise scale on the way of a larger model, two seeds."""
    return [
        _run(
            quick,
            AT,
            (20 if quick else 1_024) * AT * LENGTH,
            {"part": "noise"},
            {"part": "noise", "rate": RATE, "batches": 2 if quick else 64},
            model__num_layers=4,
            model__d_model=128,
            model__d_ff=512,
        )
    ]


def critical(quick: bool) -> list[Run]:
    """Tokens to a loss by size of a batch and width, at a constant rate, of averaged weights."""
    batches = SIZES[:2] if quick else SIZES
    step = batches[-1] * LENGTH
    return [
        _run(
            quick,
            batch,
            72 * step,
            {"part": "critical", "width": width},
            {
                "part": "critical",
                "start": RATE / 2 * (batch / AT) ** 0.5,
                "most": 3 if quick else 6,
                "at": [reading * step for reading in READINGS],
            },
            model__d_model=width,
            model__d_ff=4 * width,
            optimizer__schedule="constant",
            **_beta2(HALF_LIVES[1]),
            train__ema_decay=0.5 ** (batch * LENGTH / (READINGS[FIRST_TARGET] * step / 4)),
        )
        for width in (WIDTHS[:2] if quick else WIDTHS)
        for batch in batches
    ]


SWEEPS = {"beta2": beta2, "optimizers": optimizers, "noise": noise, "critical": critical}
