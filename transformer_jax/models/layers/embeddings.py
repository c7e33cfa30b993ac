"""Tokens to vectors, and vectors back to logits."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.parameter import parameter


class Tying(NamedTuple):
    """tables: whether two stacks read one token table. logits: whether it gives logits too."""

    tables: bool
    logits: bool


TIED_EMBEDDINGS = {
    "all": Tying(tables=True, logits=True),
    "decoder": Tying(tables=False, logits=True),
    "none": Tying(tables=False, logits=False),
}


class TokenTable(nn.Module):
    """One row a token, drawn from N(0, 1/D) (Vaswani et al. 2017, section 3.4)."""

    vocab_size: int
    d_model: int
    dtype: jnp.dtype

    def setup(self):
        init = nn.initializers.normal(self.d_model**-0.5)
        size = (self.vocab_size, self.d_model)
        self.table = parameter(self, "table", init, size, ("vocab", "embed"), matrix=(1, 1))

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows times sqrt(D), which brings them to unit variance."""
        return look_up(self.table, ids) * self.d_model**0.5

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Products with every row: the tied output projection."""
        x, table = x.astype(self.dtype), self.table.astype(self.dtype)
        logits = jnp.einsum("BTD,VD->BTV", x, table, preferred_element_type=jnp.float32)
        return constrain(logits, "batch", "length", "vocab")


def look_up(table: Float[Array, "V D"], ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table that is sharded along D, where batches are sharded along B.

    In two moves, or the compiler would gather all rows of the batch on every device in between.
    """
    return constrain(constrain(table[ids], "looked_up", "length", "embed"), "batch", "length")


class OutputProjection(nn.Module):
    """Logits from a kernel of their own, without bias."""

    vocab_size: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        init, size = nn.initializers.xavier_uniform(), (x.shape[-1], self.vocab_size)
        kernel = parameter(self, "kernel", init, size, ("embed", "vocab"), matrix=(1, 1))
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        logits = jnp.einsum("BTD,DV->BTV", x, kernel, preferred_element_type=jnp.float32)
        return constrain(logits, "batch", "length", "vocab")
