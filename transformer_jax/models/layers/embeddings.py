"""Tokens to vectors, and vectors back to logits."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.models.layers.product import product


class Tying(NamedTuple):
    """tables: whether two stacks read one token table. logits: whether it gives logits too."""

    tables: bool
    logits: bool


TIED_EMBEDDINGS = {
    "all": Tying(tables=True, logits=True),
    "inputs": Tying(tables=True, logits=False),
    "decoder": Tying(tables=False, logits=True),
    "none": Tying(tables=False, logits=False),
}


# Losses compute logits of more bytes than this on a device in chunks, each of an equal share of the
# device's tokens. On two CPU cores a step with 32 MiB of logits takes the same time either way (one
# with 250 MiB 0.82 times as long), and smaller ones are no matter of memory.
LARGE = 2**24
CHUNKS = 8


def chunks(size: float) -> int:
    """In how many chunks a loss computes logits of so many bytes on a device."""
    return CHUNKS if size > LARGE else 1


class Unprojected(NamedTuple):
    """Hidden vectors and the projection that makes logits of them: x table^T + bias.

    A loss need not hold the logits of all places at once (`training.cross_entropy`).

    Attributes:
      x: in the dtype of the product; parameters are float32.
    """

    x: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    bias: Float[Array, "V"] | None = None

    def logits(self) -> Float[Array, "B T V"]:
        """The logits of all places, float32."""
        table = self.table.astype(self.x.dtype)
        logits = product("BTD,VD->BTV", self.x, table, jnp.float32)
        logits = constrain(logits, "batch", "length", "vocab")
        return logits if self.bias is None else logits + self.bias[None, None]


class TokenTable(nn.Module):
    """One row a token, drawn from N(0, 1/D) (Vaswani et al. 2017, section 3.4).

    Attributes:
      scale: on the rows that are looked up; sqrt(D) brings them to unit variance.
      multiplier: on the logits.
    """

    vocab_size: int
    d_model: int
    dtype: jnp.dtype
    scale: float
    multiplier: float = 1.0

    def setup(self):
        init = nn.initializers.normal(self.d_model**-0.5)
        size = (self.vocab_size, self.d_model)
        axes = ("vocab", "embed")
        self.table = parameter(self, "table", init, size, axes, matrix=(1, 1), role="embedding")

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows times the scale."""
        return look_up(self.table, ids) * self.scale

    def project(self, x: Float[Array, "B T D"]) -> Unprojected:
        """Products with every row: the tied output projection."""
        return Unprojected(times(self.multiplier, x).astype(self.dtype), self.table)


def look_up(table: Float[Array, "V D"], ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table that is sharded along D, where batches are sharded along B.

    In two moves, or the compiler would gather all rows of the batch on every device in between.
    """
    return constrain(constrain(table[ids], "looked_up", "length", "embed"), "batch", "length")


class LogitsBias(nn.Module):
    """A number for each token, which is added to its logits."""

    vocab_size: int

    @nn.compact
    def __call__(self) -> Float[Array, "V"]:
        zeros, size = nn.initializers.zeros, (self.vocab_size,)
        return parameter(self, "bias", zeros, size, ("vocab",), role="vector")


def shift_right(
    targets: Int[Array, "B T"], positions: Int[Array, "B T"], bos_id: int
) -> Int[Array, "B T"]:
    """What the decoder reads: the token before, and bos at the start of each example and row."""
    before = jnp.roll(targets, 1, axis=1).at[:, 0].set(bos_id)
    return jnp.where(positions == 0, bos_id, before)


class OutputProjection(nn.Module):
    """Logits from a kernel of their own, without bias, times `multiplier`."""

    vocab_size: int
    dtype: jnp.dtype
    multiplier: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Unprojected:
        init, size = nn.initializers.xavier_uniform(), (x.shape[-1], self.vocab_size)
        axes = ("embed", "vocab")
        kernel = parameter(self, "kernel", init, size, axes, matrix=(1, 1), role="output")
        return Unprojected(times(self.multiplier, x).astype(self.dtype), kernel.T)
