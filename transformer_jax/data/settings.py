"""What of a config decides the data: where its splits and parts are, and what is made of them."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.data.prepare.recipe import Limits, Recipe, Side, TooLong
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples, SourceSettings, hold_out, share
from transformer_jax.data.read.images import ImageSettings
from transformer_jax.data.serve.mixture import counts_of

SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the data, with splits of its own.

    name: by which it is scored apart; "" of the data as a whole, and of the sets of a mixture.
    splits: what each is read from, names or files. weight: its share of the training examples.
    metrics: what its texts are scored by.
    """

    name: str
    source: SourceSettings
    splits: dict[str, tuple[str, ...]]
    weight: float
    metrics: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Set:
    """The examples that a split has of one part of the data, or of one set of a mixture.

    name, weight: the part's. where: arguments of `sources.read`. held_out: how many examples
    (documents: characters) are held out of the files, and whether these are them; None: all.
    share: of the examples, which is used.
    """

    name: str
    weight: float
    where: tuple[SourceSettings, sources.Columns, tuple[str, ...]]
    held_out: tuple[int, bool] | None
    documents: bool
    share: float

    def pieces(self) -> Iterator[Examples]:
        """The examples, read from their beginning."""
        pieces = sources.read(*self.where)
        if self.held_out is not None:
            size, wanted = self.held_out
            divided = hold_out(pieces, size, documents=self.documents)
            pieces = (piece for of_validation, piece in divided if of_validation == wanted)
        return pieces if self.share == 1 else share(pieces, self.share)

    def version(self) -> list[Any]:
        """What tells the examples from others, without reading them."""
        version = sources.version(*self.where)
        if self.held_out is not None:
            version = [version, *self.held_out]
        return version if self.share == 1 else [version, self.share]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`config.data`, and what else of the config decides the data.

    Attributes:
      recipe: which columns are read and what becomes of them.
      splits: what each split is made of; an empty "validation" is held out of "train".
      mixture: the sets that are mixed for training, in place of splits["train"] ((): none).
      parts: what the data is made of, in the place of `source` and `splits` ((): those alone).
      metrics: what texts are scored by, where there are no parts.
      contiguous: whether rows of training and scoring go on where those of the batch before ended.
      train_share: the share of the training examples that is used.
      mask_rate: fraction of the tokens that are hidden, where the recipe hides some.
      mean_span_length: tokens of a span that is hidden, where the recipe hides spans.
      tokenizer_train_bytes: of text that a tokenizer is trained on at most.
      images: how images become rows of patches; None where the recipe reads none.
      workers: processes that tokenise at most.
      model_vocab_size: tokens that the model has (None: the tokenizer's).
      longest: most places of an example, by its side; a place holds a token.
      rows: places of a row of training, by its side.
      seed: decides the order of training.
      evaluation_batch_size: rows of the batches of `split` and `prompts`.
      evaluation_readers: rows of those of `split` that read contiguous text; others are padding. So
        a score does not depend on how many rows the devices can share.
      tokenizer_file, labels_file: used where they exist, instead of the training data.

    Raises:
      ValueError: a weight of the mixture or of the parts is none.
    """

    source: SourceSettings
    recipe: Recipe
    splits: dict[str, tuple[str, ...]]
    mixture: tuple[Part, ...]
    parts: tuple[Part, ...]
    metrics: tuple[str, ...]
    validation_size: int
    train_share: float
    tokenizer_kind: str
    tokenizer_vocab_size: int
    tokenizer_train_bytes: int
    images: ImageSettings | None
    workers: int
    model_vocab_size: int | None
    mask_rate: float
    mean_span_length: float
    longest: dict[Side, int]
    rows: dict[Side, int]
    packing: bool
    contiguous: bool
    batch_size: int
    streams: int
    seed: int
    evaluation_batch_size: int
    evaluation_readers: int
    tokenizer_file: Path | None
    labels_file: Path | None

    def __post_init__(self):
        for key, sets in ("data.mixture", self.mixture), ("data.parts", self.parts):
            try:
                counts_of([part.weight for part in sets])
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None

    def limits(self, too_long: TooLong) -> Limits:
        """Most places of an example."""
        return Limits(self.longest["source"], self.longest["target"], too_long)

    @property
    def max_prompt_length(self) -> int:
        """Most places of a prompt."""
        return self.longest[self.recipe.prompt_side]

    @property
    def row_settings(self) -> dict[str, int]:
        """Places of a training row by the keys that say so, as {"data.row_source_length": 256}."""
        kind = "row" if self.packing else "max"
        rows = {f"data.{kind}_{side}_length": self.rows[side] for side in self.recipe.sides}
        if self.images and not self.packing:
            del rows["data.max_source_length"]
            rows["data.image_size in patches"] = self.rows["source"]
        return rows

    @property
    def cache(self) -> Path:
        """Where tokenizers, labels and prepared sets are kept."""
        return Path(self.source.cache_dir).expanduser()

    @property
    def named(self) -> tuple[Part, ...]:
        """The parts; without any, the data as a whole, whose name is empty."""
        return self.parts or (Part("", self.source, self.splits, 1, self.metrics),)

    def sets(self, split: str) -> list[Set]:
        """What a split is made of: one set, but of parts and of a mixture; [] where it is none.

        Raises ValueError where there can be no such split.
        """
        if split not in SPLITS:
            raise ValueError(f"there is no split {split!r}: choose one of {', '.join(SPLITS)}")
        divided = self.validation_size > 0 and split != "test"
        read = "train" if divided else split
        parts = self.mixture if split == "train" and self.mixture else self.named
        return [
            Set(
                part.name,
                part.weight,
                (part.source, self.recipe.reads, part.splits[read]),
                (self.validation_size, split == "validation") if divided else None,
                self.recipe.documents,
                self.train_share if split == "train" else 1,
            )
            for part in parts
            if part.splits[read]
        ]

    def find_files(self) -> None:
        """Raises as `sources.find_files` where a file of any split is missing."""
        for split in SPLITS:
            for part in self.sets(split):
                sources.find_files(*part.where)

    def pieces(self, split: str) -> Iterator[Examples]:
        """The examples of a split."""
        for part in self.sets(split):
            yield from part.pieces()
