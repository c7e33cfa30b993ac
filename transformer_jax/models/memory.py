"""What a language model keeps of the segments before its rows (Dai et al. 2019, 1901.02860).

It is the Flax collection "memory", which a caller passes in and, where it is mutable, gets back.
Every array has the rows of a batch first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.transformer.config import TransformerConfig


class Memory(NamedTuple):
    """What each row has read last.

    Attributes:
      hidden: what the self-attention of each layer read of the last M tokens, in the dtype of the
        products. No gradient enters it.
      real: whether a place holds a token of the document that the row has read last.
      last: the token that the row has read last.
    """

    hidden: Float[Array, "B L M D"]
    real: Bool[Array, "B M"]
    last: Int[Array, "B"]

    def before(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"], positions: Int[Array, "B T"]
    ) -> tuple[Int[Array, "B T"], Int[Array, "B S"]]:
        """What is read, where a row goes on after the last token, and the segments of all keys.

        S is M + T. Only a row whose first token is not the first of a document sees its memory.
        """
        goes_on = positions[:, 0] > 0
        first = jnp.where(goes_on, self.last, tokens[:, 0])
        memory = jnp.where(self.real & goes_on[:, None], segments[:, :1], 0)
        keys = jnp.concatenate([memory, segments], axis=1)
        return tokens.at[:, 0].set(first), keys

    def after(
        self,
        hidden: Float[Array, "L B M D"],
        targets: Int[Array, "B T"],
        segments: Int[Array, "B T"],
        keys: Int[Array, "B S"],
    ) -> "Memory":
        """What the next rows find. hidden: what the layers return; keys: as `before` has them."""
        real = (keys == segments[:, -1:]) & (keys > 0)
        hidden = jax.lax.stop_gradient(jnp.swapaxes(hidden, 0, 1))
        new = Memory(hidden, real[:, targets.shape[1] :], targets[:, -1])
        return Memory(*(constrain(x, "batch") for x in new))


def shapes(
    config: TransformerConfig, rows: int, length: int | None
) -> dict[str, jax.ShapeDtypeStruct] | tuple[()]:
    """Those of the fields of `Memory`; () for a model without one.

    length: of its places, M; None: `config.memory_length`.
    """
    if not config.memory_length:
        return ()
    length = config.memory_length if length is None else length
    size = (rows, config.num_decoder_layers, length, config.d_model)
    return {
        "hidden": jax.ShapeDtypeStruct(size, config.compute_dtype),
        "real": jax.ShapeDtypeStruct((rows, length), jnp.bool_),
        "last": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }
