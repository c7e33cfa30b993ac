"""What the configs of all families of models share: architectures, dtypes, and a check."""

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
