"""The rows of `model.init` at two depths, each at the best learning rate of a search."""

from typing import Any

from experiments.harness.small import CONFIG, text
from experiments.harness.sweep import Run
from transformer_jax.models.transformer.draws import DRAWS

DEEP = ["xavier", "gpt2", "mitchell", "llama", "fan_in", "small", "speedrun"]
assert set(DEEP) <= set(DRAWS)
# The start of the search, at which all draws are compared too.
RATES = {"shallow": 4e-3, "deep": 2e-3}


def _run(quick: bool, part: str, draw: str, sizes: dict[str, int], most: int, fresh: int) -> Run:
    steps = 20 if quick else sizes["steps"]
    base = text(
        num_layers=sizes["layers"], d_model=sizes["d_model"], steps=steps, warmup_steps=steps // 10
    )
    row = DRAWS[draw]
    base |= {
        "model.init": draw,
        "model.tied_embeddings": "none",
        "model.embedding_scale": None if row is None or row.scaled else 1.0,
    }
    base |= {"data.validation_size": 4_000} if quick else {}
    return Run(
        config=CONFIG,
        overrides=base,
        labels={"part": part, "draw": draw},
        train=False,
        measure={
            "start": RATES[part],
            "most": 1 if quick else most,
            "fresh": 2 if quick else fresh,
        },
    )


def shallow(quick: bool) -> list[Run]:
    """All draws, 4 layers of 128: a search of three or four rates, three fresh seeds."""
    sizes = {"layers": 4, "d_model": 128, "steps": 500}
    names = ["xavier", "normal", "gpt2"] if quick else list(DRAWS)
    return [_run(quick, "shallow", name, sizes, most=4, fresh=3) for name in names]


def deep(quick: bool) -> list[Run]:
    """Some draws, 24 layers of 64: a search of three rates, two fresh seeds."""
    sizes: dict[str, Any] = {"layers": 24, "d_model": 64, "steps": 300}
    names = DEEP[:2] if quick else DEEP
    return [_run(quick, "deep", name, sizes, most=3, fresh=2) for name in names]


SWEEPS = {"shallow": shallow, "deep": deep}
