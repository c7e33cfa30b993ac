"""Which examples a split has: those of its parts, without what is held out, or a share of them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples, SourceSettings, hold_out, share
from transformer_jax.data.settings import SPLITS, DataSettings


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
        found = sources.read(*self.where)
        if self.held_out is not None:
            size, wanted = self.held_out
            divided = hold_out(found, size, documents=self.documents)
            found = (piece for of_validation, piece in divided if of_validation == wanted)
        return found if self.share == 1 else share(found, self.share)

    def version(self) -> list[Any]:
        """What tells the examples from others, without reading them."""
        found = sources.version(*self.where)
        if self.held_out is not None:
            found = [found, *self.held_out]
        return found if self.share == 1 else [found, self.share]


def sets(settings: DataSettings, split: str) -> list[Set]:
    """What a split is made of: one set, but of parts and of a mixture; [] where there is none."""
    divided = settings.validation_size > 0 and split != "test"
    read = "train" if divided else split
    parts = settings.mixture if split == "train" and settings.mixture else settings.named
    return [
        Set(
            part.name,
            part.weight,
            (part.source, settings.recipe.reads, part.splits[read]),
            (settings.validation_size, split == "validation") if divided else None,
            settings.recipe.documents,
            settings.train_share if split == "train" else 1,
        )
        for part in parts
        if part.splits[read]
    ]


def find_files(settings: DataSettings) -> None:
    """Raises as `sources.find_files` where a file of any split is missing."""
    for split in SPLITS:
        for one in sets(settings, split):
            sources.find_files(*one.where)


def all_pieces(settings: DataSettings, split: str) -> Iterator[Examples]:
    """The examples of all sets of a split."""
    for one in sets(settings, split):
        yield from one.pieces()
