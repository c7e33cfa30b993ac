"""A file of rows that are not the library's, as an experiment's folder has one."""

ROWS = """
import jax.numpy as jnp

from transformer_jax.data.read.sources import PAIRS, Generated
from transformer_jax.inspection.measures import by_stack
from transformer_jax.models.transformer.schemes import ResidualScheme

SCHEMES = {
    "mine": ResidualScheme(branch_norm=True, final_norm=True),
    "doubled": ResidualScheme(post_norm=True, skip=lambda depth: 2.0, trained_branch="scalar"),
    "reads": ResidualScheme(branch=lambda depth: depth.exponent, reads=("depth_exponent",)),
}
PROBES = {"stream_rms": by_stack(lambda stack: jnp.sqrt(jnp.mean(stack.outputs**2, (1, 2, 3))))}


def read(settings, splits, columns):
    for split in splits:
        texts = [f"{'abc'[n % 3]} {'de'[n % 2]}" for n in range(24)]
        yield {"source": texts, "target": [text.upper() for text in texts]}


SOURCES = {"counting": {PAIRS: Generated(read, lambda settings: 1)}}
"""
