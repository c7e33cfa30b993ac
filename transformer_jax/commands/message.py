"""What a user reads of an error, on the command line and in Python."""

import functools
import os
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from transformer_jax.config import kinds

# Longer than a path that anybody reads; the paths in an OSError may be of any length.
_LONG = r"\S{500,}"

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Error(Exception):
    """A mistake that a user can mend: the message says what is wrong and how."""


def one_line(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which raises Error in place of what the command line tells in one line."""

    @functools.wraps(function)
    def telling(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, Error) or (text := message(error)) is None:
                raise
            raise Error(text) from error

    return telling


def message(error: Exception) -> str | None:
    """What is wrong and how to mend it; None: nobody expected the error, so it is the program's."""
    text, first_line = str(error), str(error).partition("\n")[0]
    if isinstance(error, MemoryError) or text.startswith("RESOURCE_EXHAUSTED"):
        return _shortened(
            f"there is not enough memory ({first_line}). Lower data.batch_size, "
            "evaluate.batch_size, the lengths in data, the sizes in model, or decode.beam_size"
        )
    if text.startswith("INTERNAL: Failed to initialize BLAS"):  # another process has the memory
        return f"the GPU is full: XLA_PYTHON_CLIENT_PREALLOCATE=false shares it ({first_line})"
    if text.startswith("Could not determine home"):
        return "a path begins with ~NAME, and this machine has no user NAME: write it in full"
    if text.startswith("Unable to initialize backend"):  # JAX tells of the last one that it tried
        names = os.environ.get("JAX_PLATFORMS")
        return f"JAX finds no device of JAX_PLATFORMS={names!r} here; set it to cpu ({first_line})"
    if isinstance(error, (ValueError, OSError, RuntimeError)):
        return _shortened(text)
    return None


def _shortened(text: str) -> str:
    return re.sub(_LONG, lambda word: kinds.shorten(word[0]), text)
