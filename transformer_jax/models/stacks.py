"""What stacks are called with, so that the architectures serve every family that offers some."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.models.layers.settings import Stack


class Vectors(NamedTuple):
    """The tokens of rows as vectors, those that enter a stack or leave it, and where they stand.

    Attributes:
      segments: the number of each token's text in its row, from 1; 0 is padding.
      positions: of each token in its text, from 0; below 0 in the padding before a prompt.
      grid: of patches, their row and column, and the rows and columns of their image; all 0 at the
        places before them. None: they are no patches.
      offsets: what says where they stand, and is added to what queries and keys are made from in
        every attention. None: x says it.
    """

    x: Float[Array, "B T D"]
    segments: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    grid: Int[Array, "B T 4"] | None = None
    offsets: Float[Array, "B T D"] | None = None


class Past(NamedTuple):
    """What each layer read of the M tokens before a row, and their texts as the row counts them."""

    hidden: Float[Array, "B L M D"]
    segments: Int[Array, "B M"]


class Prompts(NamedTuple):
    """Where texts that are continued stand: they end side by side, with padding in front.

    width: slots before the first token that is decoded; every hypothesis holds them itself.
    """

    padding: Int[Array, "B"]
    width: Int[Array, ""]


class Place(NamedTuple):
    """Where new tokens stand in the slots of what their rows have read.

    Rows are hypotheses, N; those of one of the B texts are adjacent.

    Attributes:
      slot: of the first new token.
      prompts: None: all rows begin at slot 0, and are decoded from there on.
      ancestors: the row of its text, from 0, that read each decoded token of a hypothesis; None:
        its own.
    """

    slot: Int[Array, ""]
    prompts: Prompts | None
    ancestors: Int[Array, "B K J"] | None = None

    def first(self, rows: int) -> Int[Array, "N"]:
        """The slot where the text of each row begins."""
        if self.prompts is None:
            return jnp.zeros(rows, jnp.int32)
        return jnp.repeat(self.prompts.padding, rows // self.prompts.padding.shape[0])

    def positions(self, rows: int, count: int) -> Int[Array, "N T"]:
        """The places of so many new tokens in their texts."""
        slots = self.slot + jnp.arange(count)
        return jnp.maximum(slots[None] - self.first(rows)[:, None], 0)

    def mask(self, rows: int, count: int, slots: int, back: int | None) -> Bool[Array, "#N T S"]:
        """Which of all slots so many new tokens see: those before them and their own.

        back: how many they see at most; None: all.
        """
        keys = jnp.arange(slots)[None]
        distances = self.slot + jnp.arange(count)[:, None] - keys
        mask = distances >= 0
        if back is not None:
            mask = mask & (distances < back)
        if self.prompts is None:
            return mask[None]
        return mask[None] & (keys >= self.first(rows)[:, None])[:, None]

    def parents(self) -> Int[Array, "B K"]:
        """The row of its text, from 0, that read the decoded token before each new one, if any."""
        assert self.ancestors is not None
        index = self.slot if self.prompts is None else self.slot - self.prompts.width
        return self.ancestors[:, :, jnp.maximum(index - 1, 0)]

    def holders(self, slots: int) -> Int[Array, "B K S"]:
        """The row of its text, from 0, that holds each slot of each hypothesis."""
        assert self.ancestors is not None
        if self.prompts is None:
            return self.ancestors[:, :, :slots]
        places = jnp.arange(slots) - self.prompts.width  # below 0: of the prompt
        ancestors = self.ancestors[:, :, jnp.clip(places, 0, self.ancestors.shape[2] - 1)]
        hypotheses = jnp.arange(self.ancestors.shape[1])[None, :, None]
        return jnp.where(places[None, None] < 0, hypotheses, ancestors)


class Cache(NamedTuple):
    """What each layer keeps of the tokens that have been read."""

    layers: tuple[Any, ...]

    def enlarged(self, by: int) -> "Cache":
        """With room for so many tokens more, where a layer keeps something of each."""
        return Cache(tuple(x.enlarged(by) if hasattr(x, "enlarged") else x for x in self.layers))


class Layers(Protocol):
    """The layers of one stack, modules of their model.

    In an encoder all tokens of a text see each other, and so in a decoder that tells a set. In any
    other decoder no token sees a later one, and it has `start` and `step`. Decoders may look at an
    encoder's output.
    """

    def __call__(
        self,
        inputs: Vectors,
        encoded: Vectors | None = None,
        past: Past | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Vectors, Any]:
        """All tokens of rows at once.

        Returns the vectors that leave the stack (B, T, C), and of a decoder that is given a past
        what each layer has read last (L, B, M, D); of one that tells a set, what would leave the
        stack after each layer (L, B, T, D).
        """
        ...

    def start(
        self, rows: int, room: int, encoded: Vectors | None, prompt: Vectors | None
    ) -> tuple[Any, Cache]:
        """What decoding keeps of each text, and a cache of what has been read.

        Args:
          rows: B, each with one text.
          room: slots of the cache, those of the prompts included.
          prompt: what is read at once, from slot 0 on.
        """
        ...

    def step(
        self, x: Float[Array, "N T D"], context: Any, cache: Cache, place: Place
    ) -> tuple[Float[Array, "N T D"], Cache]:
        """New tokens: what gives the next ones, and the cache with them; no dropout.

        context, cache: what `start` returned, the cache with the rows of each text repeated.
        """
        ...


# Makes the `Layers` of each stack of a model, from its config, in its `setup` and so in its scope.
Stacks = Callable[[Any], Mapping[Stack, Any]]
