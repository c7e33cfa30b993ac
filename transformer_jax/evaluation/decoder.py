"""How a model writes, in one value that travels through all of decoding."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from transformer_jax.evaluation import search
from transformer_jax.evaluation.search import Ancestors, Beams, Cache, Hypotheses
from transformer_jax.models.family import Model, Params

# The settings that each method reads and not every other one does.
METHODS = {
    "beam": ("beam_size", "length_penalty"),
    "greedy": (),
    "sample": ("num_samples", "temperature", "top_k", "top_p", "seed"),
}

Lengths = Int[np.ndarray, "B"]
# (tokens of prompts, decode.extra_length, most positions or None) -> most tokens that follow, more
# the longer the prompt, or fewer, or as many
Limit = Callable[[Lengths, int, int | None], Lengths]


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
    """How to decode: `config.decode`. Raises ValueError where its settings do not go together."""

    method: str
    beam_size: int
    length_penalty: float
    extra_length: int
    num_samples: int
    stop: tuple[str, ...]
    temperature: float
    top_k: int
    top_p: float
    seed: int | None  # what sampling draws by; None: the run's

    def __post_init__(self):
        if self.num_samples > 1 and self.method != "sample":
            raise ValueError(
                f"decode.num_samples is 1 where nothing is drawn, got {self.num_samples} with "
                f'decode.method="{self.method}"; set decode.method="sample"'
            )
        if "" in self.stop:
            raise ValueError(f"decode.stop has no empty text in it, got {self.stop!r}")


def prompt_shapes(rows: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of the inputs that `Decoder.begin` reads, of prompts of so many tokens."""
    names = ("inputs", "inputs_segment_ids", "inputs_positions")
    return {name: jax.ShapeDtypeStruct((rows, length), "int32") for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """A model, and how it writes. Hashable: jit compiles once for all decoders that are equal.

    Attributes:
      model: with `start` and `step`, as `models.family.Model` describes them.
      ends: the ids that end a text; where the limit ends it, the first one stands.
      pad: the id behind them.
      never: the ids that are never written.
      limit: the task's.
      first: what each text begins with.
    """

    model: Model
    settings: DecodeSettings
    ends: tuple[int, ...]
    pad: int
    never: tuple[int, ...]
    limit: Limit
    first: tuple[int, ...] = ()

    def most_written(self, prompt_tokens: Lengths) -> Lengths:
        """How many tokens are written at most after prompts of so many, what ends them included."""
        longest_row = self.model.config.longest_row
        return self.limit(prompt_tokens, self.settings.extra_length, longest_row)

    def longest(self, prompt: int) -> int:
        """How many tokens are written at most after prompts of up to so many; 1 at least.

        The ends are looked at alone, as a `Limit` grows with the prompt or falls.
        """
        return max(1, int(np.max(self.most_written(np.array([1, prompt])))))

    def begin(
        self,
        params: Params,
        inputs: Mapping[str, Int[Array | np.ndarray, "B S"]],
        limit: Int[Array | np.ndarray, "B"],
        *,
        room: int,
        length: int,
    ) -> tuple[Any, Hypotheses | Beams]:
        """The context of prompts, and their hypotheses without tokens.

        Args:
          limit: most tokens of each prompt's hypotheses, of at most `length`.
          room: for how many of them the cache has room.
        """
        first, context, cache = self.model.apply(
            {"params": params}, dict(inputs), room, method="start"
        )
        begin = search.begin
        if self.settings.method == "beam":
            begin = functools.partial(search.begin_beams, beam_size=self.settings.beam_size)
        return context, begin(
            first,
            cache,
            num_results=self.settings.num_samples,
            length=length,
            limit=jnp.asarray(limit),
            pad=self.pad,
        )

    def extension(
        self, params: Params, context: Any, keys: Key[Array, "N"]
    ) -> Callable[[Any], Any]:
        """What makes hypotheses longer by one token.

        keys: what each of them draws by.
        """
        settings = self.settings
        next_logits = functools.partial(self._next_logits, params, context)
        if settings.method == "beam":
            return functools.partial(
                search.extend_beams,
                step=next_logits,
                length_penalty=settings.length_penalty,
                ends=self.ends,
            )
        choose = search.greedy
        if settings.method == "sample":
            choose = search.sampler(
                keys, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p
            )
        return functools.partial(
            search.extend, step=next_logits, choose=choose, ends=self.ends, pad=self.pad
        )

    def _next_logits(
        self,
        params: Params,
        context: Any,
        cache: Cache,
        tokens: Int[Array, "N"],
        index: Int[Array, ""],
        ancestors: Ancestors | None,
    ) -> tuple[Array, Cache]:
        """The model's step, whose logits leave out what is not written there."""
        logits, cache = self.model.apply(
            {"params": params}, context, cache, tokens, index, ancestors, method="step"
        )
        if self.never:
            never = np.isin(np.arange(logits.shape[1]), self.never)
            logits = jnp.where(never[None], search.IMPOSSIBLE, logits)  # no copy, unlike `set`
        if self.first:
            token = jnp.asarray(self.first)[jnp.minimum(index, len(self.first) - 1)]
            free = (index >= len(self.first)) | (jnp.arange(logits.shape[-1]) == token)
            logits = jnp.where(free[None], logits, search.IMPOSSIBLE)
        return logits, cache
