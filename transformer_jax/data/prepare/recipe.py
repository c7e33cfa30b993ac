"""All that data knows of a task: the columns it reads, and the integers that become of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Int32

from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.read.examples import Examples

Side = Literal["source", "target"]
TooLong = Literal["drop", "truncate"]
Rows = list[list[int]]
Batch = dict[str, Int32[np.ndarray, "B length"]]


@dataclasses.dataclass(frozen=True)
class Column:
    """One row of integers an example.

    Attributes:
        side: whose limits it has, data.max_SIDE_length and data.row_SIDE_length.
        along: the column beside which it lies, token by token, and whose segment ids and positions
            are therefore its own. None: it has its own.
    """

    side: Side
    along: str | None = None


class Limits(NamedTuple):
    """Most tokens of an example by side, special ones included, and what becomes of longer ones.

    "drop" leaves them out (training), "truncate" cuts them (evaluation).
    """

    source: int
    target: int
    too_long: TooLong


class Draw(Protocol):
    """What is drawn anew for every batch, such as masks.

    A frozen dataclass, since its fields are part of a fingerprint. Takes a batch (packed, padded or
    both) and a generator from which it draws token by token, so that padding at the end of a row
    changes nothing before it.
    """

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Batch: ...


class Corrupt(Protocol):
    """What makes the columns of a batch from an example, drawn anew every epoch.

    A frozen dataclass, since its fields are part of a fingerprint.
    """

    def __call__(
        self, example: Mapping[str, Int32[np.ndarray, " _"]], rng: np.random.Generator
    ) -> dict[str, Int32[np.ndarray, " _"]]: ...


# (examples, tokenizer, labels, limits) -> rows by column, number of examples that were too long
Encode = Callable[[Examples, Tokenizer, tuple[str, ...], Limits], tuple[dict[str, Rows], int]]
# (lines, tokenizer, labels, limits) -> rows by column, one a line; number of lines too long
Prompt = Callable[[Sequence[str], Tokenizer, tuple[str, ...], Limits], tuple[dict[str, Rows], int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """From a task's examples to the columns of its batches.

    Attributes:
        name: the task's. Token arrays are kept under it.
        reads: the columns of the examples, which a source has to yield.
        columns: what `encode` makes of them, or `corrupt` of that; a batch has X, X_segment_ids
            (the examples of a row count from 1, 0 is padding) and X_positions (from 0 in each) of
            each column X, but for those along another one.
        encode: examples to rows. Labels count from 1; 0 is "nothing here".
        prompt: lines that came in by hand to rows, as the model reads them.
        draw: (tokenizer, task.mask_rate) -> what is drawn for each batch; None: nothing.
        corrupt: (tokenizer, task.mask_rate, task.mean_span_length, limits) -> what makes the
            columns of each example; None: `encode` does.
        encoded: what `encode` makes, where `corrupt` changes it ({}: the columns).
        drawn: the columns that `draw` adds, along the first.
        extra_tokens: special tokens that the tokenizer needs besides the usual ones.
        labels: the column of `reads` whose values are labels, one or a list an example.
        documents: whether an example is a text that may be cut anywhere.
        predicted: the column whose tokens the model learns to predict; None: it predicts labels.
    """

    name: str
    reads: tuple[str, ...]
    columns: dict[str, Column]
    encode: Encode
    prompt: Prompt
    draw: Callable[[Tokenizer, float], Any] | None = None
    corrupt: Callable[[Tokenizer, float, float, Limits], Any] | None = None
    encoded: dict[str, Column] = dataclasses.field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    extra_tokens: tuple[str, ...] = ()
    labels: str | None = None
    documents: bool = False
    predicted: str | None = None

    @property
    def kept(self) -> dict[str, Column]:
        """The columns of the token arrays."""
        return self.encoded or self.columns

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides whose limits matter, each once."""
        return tuple(dict.fromkeys(column.side for column in self.columns.values()))

    @property
    def prompt_side(self) -> Side:
        """The side whose limit prompts have: that of the first column."""
        return self.sides[0]

    def batch_sides(self) -> dict[str, Side]:
        """The keys of a batch, int32 arrays of shape (B, length), and whose length each has."""
        sides: dict[str, Side] = {}
        for name, column in self.columns.items():
            for key in keys_of(name, column):
                sides[key] = column.side
        for key in self.drawn:
            sides[key] = self.prompt_side
        return sides


def keys_of(name: str, column: Column | None) -> tuple[str, ...]:
    """The keys that a batch has of a column; None: of prompts, which lie along nothing."""
    return (
        (name,) if column and column.along else (name, f"{name}_segment_ids", f"{name}_positions")
    )
