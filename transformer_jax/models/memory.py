"""What a language model keeps of the rows before its own (Dai et al. 2019, 1901.02860).

It is the Flax collection "memory", which a caller passes in and, where it is mutable, gets back.
Every array has the rows of a batch first.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.devices.mesh import constrain
from transformer_jax.models.recurrent.cells import CELLS
from transformer_jax.models.stacks import Past


class Memory(NamedTuple):
    """What each row has read last.

    Attributes:
      hidden: what the self-attention of each layer read of the last M tokens, in the dtype of the
        products; of a recurrent model each layer's state after the last token (M = 1), its arrays
        side by side, in float32. No gradient enters it.
      real: whether a place holds a token of the document that the row has read last.
      last: the token that the row has read last.
    """

    hidden: Float[Array, "B L M D"]
    real: Bool[Array, "B M"]
    last: Int[Array, "B"]

    def before(
        self, tokens: Int[Array, "B T"], segments: Int[Array, "B T"], positions: Int[Array, "B T"]
    ) -> tuple[Int[Array, "B T"], Past]:
        """The tokens that are read, where a row continues after the last one, and their past.

        Only a row whose first token is not the first of a document sees its memory.
        """
        continues = positions[:, 0] > 0
        first = jnp.where(continues, self.last, tokens[:, 0])
        past_segments = jnp.where(self.real & continues[:, None], segments[:, :1], 0)
        return tokens.at[:, 0].set(first), Past(self.hidden, past_segments)

    @classmethod
    def after(
        cls,
        past: Past,
        hidden: Float[Array, "L B M D"],
        targets: Int[Array, "B T"],
        segments: Int[Array, "B T"],
    ) -> "Memory":
        """What the next rows find. past: what the stack was given; hidden: what it returns."""
        keys = jnp.concatenate([past.segments, segments], axis=1)
        real = (keys == segments[:, -1:]) & (keys > 0)
        hidden = jax.lax.stop_gradient(jnp.swapaxes(hidden, 0, 1))
        new = cls(hidden, real[:, targets.shape[1] :], targets[:, -1])
        return cls(*(constrain(x, "batch") for x in new))


def shapes(
    config: Any, rows: int, length: int | None
) -> dict[str, jax.ShapeDtypeStruct] | tuple[()]:
    """The shapes of the fields of `Memory`; () for a model without one.

    length: of its places, M; None: `config.memory_length`.
    """
    if not config.memory_length:
        return ()
    places = config.memory_length if length is None else length
    return _shapes(config, rows, places, config.d_model, config.compute_dtype)


def state_shapes(config: Any, rows: int, length: int | None) -> Any:
    """The same of a recurrent model, whose memory has one place whatever `length` says."""
    if not config.stateful:
        return ()
    width = CELLS[config.row.cell].states * config.d_model
    return _shapes(config, rows, 1, width, jnp.float32)


def _shapes(config: Any, rows: int, length: int, width: int, dtype: Any) -> Any:
    size = (rows, config.num_decoder_layers, length, width)
    return {
        "hidden": jax.ShapeDtypeStruct(size, dtype),
        "real": jax.ShapeDtypeStruct((rows, length), jnp.bool_),
        "last": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }
