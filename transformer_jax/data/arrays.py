"""Token arrays: examples tokenised once, kept on disk, memory-mapped from there."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64

from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.examples import Examples
from transformer_jax.data.recipe import Limits, Recipe, Rows
from transformer_jax.data.tokenizer import Tokenizer

_CHUNK = 16_384  # examples handled at a time, which bounds the memory that lists of ints take
_FORMAT = 2  # counts the ways in which recipes have made arrays


@dataclasses.dataclass(frozen=True)
class TokenArrays:
    """The token ids of a split, by columns.

    Attributes:
        columns: ids of all examples, one after the other.
        offsets: where each example starts, and at last where all end: example i has
            columns[name][offsets[name][i] : offsets[name][i + 1]].
        too_long: examples that were longer than the limits, and so left out or truncated.
        fingerprint: SHA-256 of all that made the arrays: examples, tokenizer, recipe, limits.
    """

    columns: dict[str, Int32[np.ndarray, " tokens"]]
    offsets: dict[str, Int64[np.ndarray, " n+1"]]
    too_long: int
    fingerprint: str

    def __len__(self) -> int:
        return len(next(iter(self.offsets.values()))) - 1

    def __getitem__(self, index: int) -> dict[str, Int32[np.ndarray, " length"]]:
        """Example `index`, by columns: this makes the arrays a Grain source."""
        return {
            name: tokens[self.offsets[name][index] : self.offsets[name][index + 1]]
            for name, tokens in self.columns.items()
        }


def tokenise(
    examples: Examples,
    tokenizer: Tokenizer,
    recipe: Recipe,
    labels: tuple[str, ...],
    limits: Limits,
) -> TokenArrays:
    """The arrays of all examples, made in pieces.

    Raises:
        ValueError: nothing is left, or as `recipe.encode`.
    """
    chunks = []
    longer = 0
    for chunk in _chunks(examples, recipe):
        rows, count = recipe.encode(chunk, tokenizer, labels, limits)
        chunks.append({name: _flatten(column) for name, column in rows.items()})
        longer += count
    if not any(lengths.size for chunk in chunks for _, lengths in chunk.values()):
        raise ValueError(
            f"no example is left of {len(examples[recipe.reads[0]])}: {longer} are longer than "
            f"data.max_source_length={limits.source} or data.max_target_length={limits.target} "
            "tokens"
        )
    return TokenArrays(
        columns={
            name: np.concatenate([chunk[name][0] for chunk in chunks]) for name in recipe.columns
        },
        offsets={
            name: np.concatenate([[0], *(chunk[name][1] for chunk in chunks)]).cumsum()
            for name in recipe.columns
        },
        too_long=longer,
        fingerprint=_fingerprint(examples, tokenizer, recipe, labels, limits),
    )


def cached_tokens(
    examples: Examples,
    tokenizer: Tokenizer,
    recipe: Recipe,
    labels: tuple[str, ...],
    limits: Limits,
    *,
    cache_dir: str | Path,
) -> TokenArrays:
    """tokenise, kept under cache_dir/tokens/<fingerprint> and memory-mapped from there."""
    key = _fingerprint(examples, tokenizer, recipe, labels, limits)
    folder = Path(cache_dir).expanduser() / "tokens" / key

    def build(temporary: Path) -> None:
        arrays = tokenise(examples, tokenizer, recipe, labels, limits)
        for name in recipe.columns:
            np.save(temporary / f"{name}.npy", arrays.columns[name])
            np.save(temporary / f"{name}_offsets.npy", arrays.offsets[name])
        (temporary / "too_long.json").write_text(json.dumps(arrays.too_long))

    def mapped(name: str) -> np.ndarray:
        # A plain view of the mapped file: slicing np.memmap itself is many times slower.
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

    build_once(folder, build)
    return TokenArrays(
        columns={name: mapped(name) for name in recipe.columns},
        offsets={name: mapped(f"{name}_offsets") for name in recipe.columns},
        too_long=json.loads((folder / "too_long.json").read_text()),
        fingerprint=key,
    )


def _flatten(rows: Rows) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " n"]]:
    """The rows as one array, and their lengths."""
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, count=lengths.sum())
    return flat, lengths


def _fingerprint(
    examples: Examples,
    tokenizer: Tokenizer,
    recipe: Recipe,
    labels: tuple[str, ...],
    limits: Limits,
) -> str:
    made_by = _FORMAT, tokenizer.fingerprint, recipe.name, labels, limits._asdict()
    return fingerprint(*made_by, *_chunks(examples, recipe))


def _chunks(examples: Examples, recipe: Recipe) -> Iterator[Examples]:
    for start in range(0, len(examples[recipe.reads[0]]), _CHUNK):
        yield {name: examples[name][start : start + _CHUNK] for name in recipe.reads}
