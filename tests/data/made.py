"""Prepared sets of a few examples."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.data.arrays import TokenArrays
from transformer_jax.data.examples import Examples
from transformer_jax.data.prepare import Plan, prepared
from transformer_jax.data.recipe import Limits, Recipe
from transformer_jax.data.tokenizer import Tokenizer


def make_arrays(
    pieces: Sequence[Examples],
    tokenizer: Tokenizer,
    recipe: Recipe,
    labels: tuple[str, ...],
    limits: Limits,
) -> TokenArrays:
    """The token arrays of these examples; their files stay open, and nobody else sees them."""
    plan = Plan(tokenizer=tokenizer, recipe=recipe, labels=labels, limits=limits, keeps_texts=False)
    with tempfile.TemporaryDirectory() as folder:
        return prepared(
            plan, lambda: iter(pieces), Path(folder) / "set", workers=1, what="", total=None
        )
