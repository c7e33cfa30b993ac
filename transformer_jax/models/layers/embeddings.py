"""Tokens and positions to vectors, and vectors back to logits."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.layers.dropout import Dropout
from transformer_jax.models.layers.norm import Norm
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.transformer.config import TransformerConfig


class TokenTable(nn.Module):
    """One row a token, drawn from N(0, 1/D) (Vaswani et al. 2017, section 3.4)."""

    config: TransformerConfig

    def setup(self):
        size = (self.config.vocab_size, self.config.d_model)
        init = nn.initializers.normal(self.config.d_model**-0.5)
        self.table = parameter(self, "table", init, size, ("vocab", "embed"))

    def embed(self, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows times sqrt(D), which brings them to unit variance."""
        return _look_up(self.table, ids) * self.config.d_model**0.5

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Products with every row: the tied output projection."""
        dtype = self.config.compute_dtype
        logits = jnp.einsum(
            *("BTD,VD->BTV", x.astype(dtype), self.table.astype(dtype)),
            preferred_element_type=jnp.float32,
        )
        return constrain(logits, "batch", "length", "vocab")


def _look_up(table: Float[Array, "V D"], ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Rows of a table, which lies cut along D where batches are cut along B.

    In two moves, or the compiler would gather all rows of the batch on every device in between.
    """
    return constrain(constrain(table[ids], "looked_up", "length", "embed"), "batch", "length")


class OutputProjection(nn.Module):
    """Logits from a kernel of their own, without bias."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        size = (self.config.d_model, self.config.vocab_size)
        init = nn.initializers.xavier_uniform()
        kernel = parameter(self, "kernel", init, size, ("embed", "vocab"))
        dtype = self.config.compute_dtype
        logits = jnp.einsum(
            *("BTD,DV->BTV", x.astype(dtype), kernel.astype(dtype)),
            preferred_element_type=jnp.float32,
        )
        return constrain(logits, "batch", "length", "vocab")


def sinusoids(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """sin(t / 10000^(2i/D)) in even and the cosine in odd channels (Vaswani et al. 2017, 3.5)."""
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, d_model, 2) / d_model)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, d_model).astype("f4")


class Positions(nn.Module):
    """Adds a vector for each position (rotary positions: none), then drops entries of the sum.

    Positions count within a packed example. `length` bounds them: the row, or the cache. With
    `norm` the sum is normalised before entries are dropped (Devlin et al. 2019, in code).
    """

    config: TransformerConfig
    norm: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        *,
        length: int,
        deterministic: bool,
    ) -> Float[Array, "B T D"]:
        config = self.config
        match config.positions:
            case "learned":
                if length > config.max_length:
                    raise ValueError(
                        f"a row of {length} tokens is longer than the {config.max_length} learned "
                        "positions: raise model.max_length or shorten the rows"
                    )
                init = nn.initializers.normal(0.02)
                size = (config.max_length, config.d_model)
                table = parameter(self, "table", init, size, ("positions", "embed"))
                x = x + _look_up(table, positions)
            case "sinusoidal":
                x = x + jnp.asarray(sinusoids(length, config.d_model))[positions]
        if self.norm:
            x = Norm(config, name="norm")(x)
        drop = Dropout(config.embedding_dropout_rate, name="dropout")
        return drop(x, deterministic=deterministic)
