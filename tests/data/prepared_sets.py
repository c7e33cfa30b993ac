"""Prepared sets of a few examples."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.prepare.prepare import Plan, prepared
from transformer_jax.data.prepare.recipe import Limits, Recipe
from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.read.examples import Examples


def make_arrays(
    pieces: Sequence[Examples],
    tokenizer: Tokenizer,
    recipe: Recipe,
    labels: tuple[str, ...],
    limits: Limits,
) -> TokenArrays:
    """The token arrays of these examples; their files stay open, and nobody else sees them."""
    plan = Plan(encoder=tokenizer, recipe=recipe, labels=labels, limits=limits, keeps_texts=False)
    with tempfile.TemporaryDirectory() as folder:
        return prepared(
            plan, lambda: iter(pieces), Path(folder) / "set", workers=1, what="", total=None
        )
