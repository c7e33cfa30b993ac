"""Tokens to vectors, and vectors back to logits."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.parameter import parameter, times
from transformer_jax.models.layers.product import product, soft_cap


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


@struct.dataclass
class Unprojected:
    """Hidden vectors and the projection that makes logits of them: x table^T + bias.

    A loss need not hold the logits of all places at once (`training.cross_entropy`).

    Attributes:
      x: in the dtype of the product; parameters are float32.
      softcap: of the logits, at last (see `soft_cap`).
    """

    x: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    bias: Float[Array, "V"] | None = None
    softcap: float | None = struct.field(default=None, pytree_node=False)

    def logits(self, product: Callable[..., Any] = product) -> Float[Array, "B T V"]:
        """The logits of all places, float32. product: as of `Attention`."""
        table = self.table.astype(self.x.dtype)
        logits = product("BTD,VD->BTV", self.x, table, jnp.float32)
        logits = constrain(logits, "batch", "length", "vocab")
        logits = logits if self.bias is None else logits + self.bias[None, None]
        return soft_cap(logits, self.softcap)


class TokenTable(nn.Module):
    """One row a token, drawn from N(0, 1/D) (Vaswani et al. 2017, section 3.4)."""

    config: Any

    def setup(self):
        d_model, axes = self.config.d_model, ("vocab", "embed")
        init, size = nn.initializers.normal(d_model**-0.5), (self.config.vocab_size, d_model)
        self.table = parameter(self, "table", init, size, axes, matrix=(1, 1), role="embedding")

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows times their multiplier: sqrt(D), if not set, brings them to unit variance."""
        return look_up(self.table, ids) * self.config.multipliers.embedding

    def project(self, x: Float[Array, "B T D"]) -> Unprojected:
        """Products with every row: the tied output projection."""
        return Unprojected(scaled(self.config, x), self.table)


def look_up(table: Float[Array, "V D"], ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table that is sharded along D, where batches are sharded along B.

    In two moves, or the compiler would gather all rows of the batch on every device in between.
    """
    return constrain(constrain(table[ids], "looked_up", "length", "embed"), "batch", "length")


class LogitsBias(nn.Module):
    """A number for each token, which is added to its logits."""

    config: Any

    @nn.compact
    def __call__(self) -> Float[Array, "V"]:
        zeros, size = nn.initializers.zeros, (self.config.vocab_size,)
        return parameter(self, "bias", zeros, size, ("vocab",), role="vector")


def shift_right(
    targets: Int[Array, "B T"], positions: Int[Array, "B T"], bos_id: int
) -> Int[Array, "B T"]:
    """What the decoder reads: the token before, and bos at the start of each example and row."""
    before = jnp.roll(targets, 1, axis=1).at[:, 0].set(bos_id)
    return jnp.where(positions == 0, bos_id, before)


class OutputProjection(nn.Module):
    """Logits from a kernel of their own, without bias."""

    config: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Unprojected:
        init, size = nn.initializers.xavier_uniform(), (x.shape[-1], self.config.vocab_size)
        axes = ("embed", "vocab")
        kernel = parameter(self, "kernel", init, size, axes, matrix=(1, 1), role="output")
        return Unprojected(scaled(self.config, x), kernel.T)


def scaled(config: Any, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """What makes logits, times their multiplier and in the dtype of products."""
    return times(config.multipliers.output, x).astype(config.compute_dtype)
