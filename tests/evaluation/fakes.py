"""Pure functions in the place of models, and what the tests of decoding share."""

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.defaults import settings
from transformer_jax.evaluation.decoder import Decoder, DecodeSettings
from transformer_jax.models.family import Outputs

PAD, EOS, BOS = 0, 1, 2
BEAM = settings(DecodeSettings, "decode", beam_size=3, extra_length=2)


class Function(NamedTuple):
    """A "model" whose outputs are those of a function (params, batch, memory) -> (values, memory).

    Of the settings of a call matters that there is no dropout.
    """

    compute: Callable[..., tuple[Any, Any]]

    def apply(self, variables, batch, *, deterministic, method, **settings):
        assert deterministic and method == "outputs"
        values, memory = self.compute(variables["params"], batch, variables.get("memory", ()))
        return Outputs(values), {"memory": memory}


class Writer:
    """A "model" that writes, by `start` and `step` with parameters in front."""

    config = types.SimpleNamespace(longest_row=None)

    def apply(self, variables, *arguments, method):
        return getattr(self, method)(variables["params"], *arguments)


class History(NamedTuple):
    """A cache, of all that was read."""

    tokens: Any

    def enlarged(self, by):
        return History(jnp.pad(self.tokens, [(0, 0), (0, by)]))


def of_source(tokens, extra_length, most_positions):
    """A limit: as many tokens as the prompt has, and some more."""
    return tokens + extra_length


def decoder(model: Any, settings=BEAM, limit: Any = of_source, ends=(EOS,), never=()) -> Decoder:
    return Decoder(model=model, settings=settings, ends=ends, pad=PAD, never=never, limit=limit)


def padded(rows, length):
    return np.array([[*row, *[PAD] * (length - len(row))] for row in rows], np.int32)


def own_history(tokens, ancestors):
    """What each hypothesis has read, from the rows of its sentence that hold it."""
    if ancestors is None:
        return tokens
    ancestors = ancestors[:, :, : tokens.shape[1]]
    rows = tokens.reshape(ancestors.shape)
    return jnp.take_along_axis(rows, ancestors, axis=1).reshape(tokens.shape)


def counting(step, calls):
    """The step, which adds its index to the calls each time that it runs."""

    def counted(*arguments):
        *_, index, _ = arguments
        jax.debug.callback(lambda index: calls.append(int(index)), index)
        return step(*arguments)

    return counted
