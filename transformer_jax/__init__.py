"""Studies of how Transformers train, in JAX and Flax Linen: see docs/python.md.

    import transformer_jax as tj

    run = tj.load("runs/quickstart")
    run.generate(["Ana washed the car because it was dirty ."])

What is asked for is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.api import (
        Error,
        LoadedRun,
        Runs,
        Trainer,
        export,
        load,
        load_config,
        load_runs,
        train,
        trainer,
    )

__all__ = [
    "Error",
    "LoadedRun",
    "Runs",
    "Trainer",
    "export",
    "load",
    "load_config",
    "load_runs",
    "train",
    "trainer",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_jax.process import machine

    machine.keep_freed_memory()  # first of all, since some libraries start threads when imported
    return getattr(importlib.import_module("transformer_jax.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
