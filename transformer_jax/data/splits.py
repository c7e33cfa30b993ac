"""Which examples a split has: those of its parts, without what is held out, or a share of them."""

from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples, hold_out, share
from transformer_jax.data.settings import SPLITS, DataSettings, Named, Part


def has(settings: DataSettings, split: str) -> bool:
    """Whether there is such a split."""
    return bool(parts(settings, split))


def parts(settings: DataSettings, split: str) -> Sequence[Part]:
    """The sets that a split is made of: one, but of parts and of a mixture for training."""
    if split == "train" and settings.mixture:
        return settings.mixture
    read = _read_for(settings, split)
    return [Part(one.source, one.splits[read], one.weight) for one in named(settings, split)]


def named(settings: DataSettings, split: str) -> list[Named]:
    """The parts that have such a split."""
    read = _read_for(settings, split)
    return [one for one in settings.named if one.splits[read]]


def find_files(settings: DataSettings) -> None:
    """Raises as `sources.find_files` where a file of any split is missing."""
    for split in SPLITS:
        for part in parts(settings, split):
            sources.find_files(part.source, settings.recipe.reads, part.files)


def pieces(settings: DataSettings, split: str, part: Part) -> Iterator[Examples]:
    """The examples of a set of a split, read from their beginning."""
    held = _is_held_out(settings, split)
    found = sources.read(part.source, settings.recipe.reads, part.files)
    if held is not None:
        documents = settings.recipe.documents
        divided = hold_out(found, settings.validation_size, documents=documents)
        found = (piece for of_validation, piece in divided if of_validation == held)
    used = settings.share(split)
    return found if used == 1 else share(found, used)


def all_pieces(settings: DataSettings, split: str) -> Iterator[Examples]:
    """The examples of all sets of a split."""
    for part in parts(settings, split):
        yield from pieces(settings, split, part)


def version(settings: DataSettings, split: str, part: Part) -> list[Any]:
    """What tells the examples of a set from others, without reading them."""
    held = _is_held_out(settings, split)
    found = sources.version(part.source, settings.recipe.reads, part.files)
    if held is not None:
        found = [found, settings.validation_size, held]
    used = settings.share(split)
    return found if used == 1 else [found, used]


def versions(settings: DataSettings, *splits: str) -> list[list[Any]]:
    """The versions of all sets of these splits."""
    return [version(settings, split, part) for split in splits for part in parts(settings, split)]


def _read_for(settings: DataSettings, split: str) -> str:
    """The split whose files are read for a split."""
    return "train" if _is_held_out(settings, split) else split


def _is_held_out(settings: DataSettings, split: str) -> bool | None:
    """Whether a split is what is held out of train, or what remains; None: neither."""
    divided = settings.validation_size and split in ("train", "validation")
    return split == "validation" if divided else None
