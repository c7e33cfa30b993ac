"""All that data knows of a task: the columns it reads, and the numbers that become of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes  # noqa: F401  # by which NumPy knows "bfloat16"
import numpy as np
from jaxtyping import Int64, Shaped

from transformer_jax.data.prepare.tokenizer import Tokenizer
from transformer_jax.data.read.examples import Examples

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")
TooLong = Literal["drop", "truncate"]
Rows = list[list[int]]  # the token ids of each example
# By column, the rows of all examples: ids, or arrays of shape (length, *Column.shape).
Encoded = Mapping[str, Sequence[Any]]
Encoding = tuple[Encoded, Sequence[int]]  # and the numbers of the examples that were too long
Labels = tuple[str, ...]
Batch = dict[str, Shaped[np.ndarray, "B ..."]]
# A batch and the number of the example in each of its rows; -1 marks a row of padding.
NumberedBatch = tuple[Batch, Int64[np.ndarray, " B"]]


@dataclasses.dataclass(frozen=True)
class Column:
    """A part of each example: a sequence of token ids, or of arrays of numbers such as patches.

    Attributes:
        side: whose limits it has, data.max_SIDE_length and data.row_SIDE_length.
        along: the column beside which it lies, place by place, and whose segment ids and positions
            are therefore its own. None: it has its own.
        shape: of the array at each place; () is a single number.
        dtype: NumPy's name of the numbers' type; "bfloat16" is one too.
    """

    side: Side
    along: str | None = None
    shape: tuple[int, ...] = ()
    dtype: str = "int32"

    @property
    def is_plain(self) -> bool:
        """Whether there is one int32 at each place, as of token ids and labels."""
        return (self.shape, self.dtype) == ((), "int32")

    def array(self, row: Any) -> Shaped[np.ndarray, "length ..."]:
        """The numbers of an example.

        Raises:
            ValueError: they have another shape, or none.
        """
        array = np.asarray(row, self.dtype)
        if not array.size:
            return array.reshape(0, *self.shape)
        if array.shape[1:] != self.shape:
            raise ValueError(
                f"expected arrays of shape {self.shape}, got {array.shape[1:]} in {row!r:.99}"
            )
        return array

    def keys(self, name: str) -> tuple[str, ...]:
        """The keys of a batch that come of this column under its name."""
        return (name,) if self.along else (name, f"{name}_segment_ids", f"{name}_positions")


class Limits(NamedTuple):
    """Most places of an example by side, and what becomes of longer examples.

    A place holds a token, special ones included. "drop" leaves longer examples out (training),
    "truncate" cuts them (evaluation).
    """

    source: int
    target: int
    too_long: TooLong


class Drawing(NamedTuple):
    """What decides how `Recipe.draw` and `Recipe.corrupt` draw.

    Attributes:
        mask_rate, mean_span_length: `task.mask_rate` and `task.mean_span_length`.
        limits: most places of an example.
        training: whether the batches are trained on. Augmentation belongs only there.
    """

    mask_rate: float
    mean_span_length: float
    limits: Limits
    training: bool


# What draws and corrupts are frozen dataclasses, since their fields are part of a fingerprint.
# What is drawn anew for every batch, packed, padded or both, such as masks. It is drawn token by
# token, so that padding at the end of a row changes nothing before it.
Draw = Callable[[Batch, np.random.Generator], Batch]
# What makes the columns of a batch from an example, drawn anew every epoch.
Corrupt = Callable[[Mapping[str, Any], np.random.Generator], dict[str, Any]]
# (examples, encoder, labels, limits) -> encoding. What encodes is the tokenizer, the ImageSettings
# of a recipe that reads images, or None.
Encode = Callable[[Examples, Any, Labels, Limits], Encoding]
# (lines, encoder, labels, limits) -> encoding, one row a line
Prompt = Callable[[Sequence[str], Any, Labels, Limits], Encoding]


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
        tokenized: whether `encode` and `prompt` need a tokenizer. Otherwise none is made, and the
            columns are numbers of any kind.
        draw: (encoder, drawing) -> what is drawn for each batch; None: nothing.
        corrupt: (encoder, drawing) -> what makes the columns of each example; None: `encode` does.
        encoded: what `encode` makes, where `corrupt` changes it ({}: the columns).
        random_columns: the columns that `draw` adds, along the first.
        extra_tokens: special tokens that the tokenizer needs besides the usual ones.
        labels: the column of `reads` whose values are labels, one or a list an example.
        fewest_labels: with which there is something to learn.
        documents: whether an example is a text that may be cut anywhere.
        left_out: examples -> how much in them nothing is made of, and what that is; None: nothing.
        predicted: the column, of `encode` or of `corrupt`, whose tokens the model learns to
            predict; None: it predicts labels or numbers.
        version: raised where `encode`, or what the columns of `reads` say, has changed: sets are
            then made anew, and runs on the former ones are not continued.
    """

    name: str
    reads: tuple[str, ...]
    columns: dict[str, Column]
    encode: Encode
    prompt: Prompt
    tokenized: bool = True
    draw: Callable[[Tokenizer, Drawing], Any] | None = None
    corrupt: Callable[[Any, Drawing], Any] | None = None
    encoded: dict[str, Column] = dataclasses.field(default_factory=dict)
    random_columns: tuple[str, ...] = ()
    extra_tokens: tuple[str, ...] = ()
    labels: str | None = None
    fewest_labels: int = 2
    documents: bool = False
    left_out: Callable[[Examples], dict[str, int]] | None = None
    predicted: str | None = None
    version: int = 0

    @property
    def reads_images(self) -> bool:
        """Whether it reads images, which `pictures` makes rows of patches of."""
        return "image" in self.reads

    @property
    def counts(self) -> str:
        """What the lengths of examples are numbers of."""
        return "tokens" if self.tokenized else "boxes" if self.reads_images else "places"

    @property
    def stored(self) -> dict[str, Column]:
        """The columns of the token arrays."""
        return self.encoded or self.columns

    @property
    def counted(self) -> list[str]:
        """The columns of the token arrays whose ids are counted."""
        return [name for name, column in self.stored.items() if self.tokenized and column.is_plain]

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides whose limits matter, each once."""
        return tuple(dict.fromkeys(column.side for column in self.columns.values()))

    @property
    def prompt_side(self) -> Side:
        """The side whose limit prompts have: that of the first column."""
        return self.sides[0]

    def batch_columns(self) -> dict[str, Column]:
        """The arrays of a batch by their keys. Each has the shape (B, length, *shape)."""
        arrays: dict[str, Column] = {}
        for name, column in self.columns.items():
            plain = Column(column.side, along=name)
            arrays |= dict.fromkeys(column.keys(name), plain) | {name: column}
        return arrays | dict.fromkeys(self.random_columns, Column(self.prompt_side))
