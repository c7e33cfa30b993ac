"""What the configs of all families of models share: architectures, dtypes, and checks of values."""

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import jax.numpy as jnp

from transformer_jax.models.layers.heads import HEADS

Stack = Literal["encoder", "decoder"]

# The stacks that an architecture is made of, in the order in which they run.
ARCHITECTURES: dict[str, tuple[Stack, ...]] = {
    "encoder_decoder": ("encoder", "decoder"),
    "encoder_only": ("encoder",),
    "decoder_only": ("decoder",),
}
DTYPES = {"float32": jnp.dtype("float32"), "bfloat16": jnp.dtype("bfloat16")}


def check_choices(config: Any, choices: Mapping[str, Collection[str]]) -> None:
    """Raises ValueError for a field of a model's config whose value is not a key of its table."""
    for name, table in choices.items():
        if (value := getattr(config, name)) not in table:
            near = difflib.get_close_matches(str(value), table, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"model.{name}={value!r} is not one of {', '.join(table)}{hint}")


def check_sizes(config: Any, names: Iterable[str]) -> None:
    """Raises ValueError for one of these fields that is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"model.{name}={getattr(config, name)} must be at least 1")


def check_rates(config: Any, names: Iterable[str]) -> None:
    """Raises ValueError for one of these fields that is not in [0, 1)."""
    for name in names:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise ValueError(f"model.{name}={getattr(config, name)} must lie in [0, 1)")


def check_head(config: Any) -> None:
    """Raises ValueError where the head does not fit the architecture, or has no labels."""
    head = HEADS[config.head]
    fitting = [name for name, own in ARCHITECTURES.items() if own[-1] == head.stack]
    if config.architecture not in fitting:
        raise ValueError(
            f"the head {config.head!r} needs model.architecture="
            f"{' or '.join(map(repr, fitting))}, got {config.architecture!r}"
        )
    if head.labels and config.num_labels < 1:
        raise ValueError(
            f"the head {config.head!r} needs at least one label, got {config.num_labels}"
        )
