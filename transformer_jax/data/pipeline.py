"""Examples to token arrays (tokenised once, cached), and token arrays to batches.

Training draws from fixed streams over a shuffled order, each with its own packer (Grain's) and its
own small state; evaluation sorts by length into a few fixed shapes.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import grain.experimental
import numpy as np
import tokenizers
from absl import logging
from jaxtyping import Bool, Int32, Int64

from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.sources import Examples
from transformer_jax.data.tokenizer import PAD_ID, Tokenizer, load_tokenizer, train_tokenizer
from transformer_jax.data.transforms import READ_COLUMNS, TooLong, encode, mask_tokens

Batch = dict[str, Int32[np.ndarray, "B length"]]

# Rows that a stream fills side by side before it hands them out: more rows leave less padding,
# fewer are packed anew when a run resumes.
PACKING_BINS = 32
_CHUNK = 16_384  # examples handled at a time, which bounds the memory that lists of ints take
_ARRAYS_FORMAT = 1  # counts the ways in which transforms.encode has made arrays
_TOKENIZER_FORMAT = 2  # counts the ways in which train_tokenizer has read texts

# Lies along the inputs, so that their segment ids and positions are its own.
_LABELS = "labels"
_BATCH_COLUMNS = {
    "translation": ("inputs", "targets"),
    "causal_lm": ("targets",),
    "masked_lm": ("inputs",),
    "classification": ("inputs", _LABELS),
    "tagging": ("inputs", _LABELS),
}


def batch_keys(objective: str) -> tuple[str, ...]:
    """What a batch of the objective holds: int32 arrays of shape (B, length).

    X_segment_ids counts the examples of a row of X from 1 (0: padding), X_positions the tokens of
    each from 0. Labels and the targets of masked_lm lie along the inputs.
    """
    keys = itertools.chain.from_iterable(map(_keys, _BATCH_COLUMNS[objective]))
    return (*keys, "targets") if objective == "masked_lm" else tuple(keys)


def _keys(column: str) -> tuple[str, ...]:
    if column == _LABELS:
        return (column,)
    return column, f"{column}_segment_ids", f"{column}_positions"


@dataclass(frozen=True)
class Masking:
    """How batches of masked_lm are masked: see transforms.mask_tokens."""

    mask_rate: float
    mask_id: int

    def __call__(self, batch: Batch, rng: np.random.Generator) -> Batch:
        return mask_tokens(batch, rng, **dataclasses.asdict(self))


@dataclass(frozen=True)
class TokenArrays:
    """The token ids of a split, by columns.

    Attributes:
        columns: ids of all examples, one after the other.
        offsets: where each example starts, and at last where all end: example i has
            columns[name][offsets[name][i] : offsets[name][i + 1]].
        too_long: examples that were longer than the limits, and so left out or truncated.
        fingerprint: SHA-256 of all that made the arrays: examples, tokenizer, objective, limits.
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
    objective: str,
    labels: tuple[str, ...],
    *,
    max_source_length: int,
    max_target_length: int,
    too_long: TooLong,
) -> TokenArrays:
    """The examples as token arrays; the arguments are those of transforms.encode.

    Raises:
        ValueError: no example is left, or a label is unknown.
    """
    limits: dict[str, Any] = dict(
        max_source_length=max_source_length, max_target_length=max_target_length, too_long=too_long
    )
    chunks = []
    longer = 0
    for chunk in _chunks(examples, READ_COLUMNS[objective]):
        rows, count = encode(chunk, tokenizer, objective, labels, **limits)
        chunks.append({name: _flatten(column) for name, column in rows.items()})
        longer += count
    names = _BATCH_COLUMNS[objective]
    if not any(lengths.size for chunk in chunks for _, lengths in chunk.values()):
        raise ValueError(
            f"no example is left of {len(examples[READ_COLUMNS[objective][0]])}: {longer} are "
            f"longer than data.max_source_length={max_source_length} or "
            f"data.max_target_length={max_target_length} tokens"
        )
    return TokenArrays(
        columns={name: np.concatenate([chunk[name][0] for chunk in chunks]) for name in names},
        offsets={
            name: np.concatenate([[0], *(chunk[name][1] for chunk in chunks)]).cumsum()
            for name in names
        },
        too_long=longer,
        fingerprint=_fingerprint(examples, tokenizer, objective, labels, limits),
    )


def _flatten(
    rows: list[list[int]],
) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " n"]]:
    """The rows as one array, and their lengths."""
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, count=lengths.sum())
    return flat, lengths


def _fingerprint(
    examples: Examples,
    tokenizer: Tokenizer,
    objective: str,
    labels: tuple[str, ...],
    limits: dict[str, Any],
) -> str:
    chunks = _chunks(examples, READ_COLUMNS[objective])
    made_by = _ARRAYS_FORMAT, tokenizer.fingerprint
    return fingerprint(*made_by, objective, labels, limits, *chunks)


def _chunks(columns: Examples, names: Sequence[str]) -> Iterator[Examples]:
    for start in range(0, len(columns[names[0]]), _CHUNK):
        yield {name: columns[name][start : start + _CHUNK] for name in names}


def cached_tokenizer(
    kind: str, texts: list[str], vocab_size: int, mask: bool, *, cache_dir: str | Path
) -> Tokenizer:
    """train_tokenizer, kept under cache_dir/tokenizers."""
    chunks = _chunks({"text": texts}, ["text"])
    key = fingerprint(_TOKENIZER_FORMAT, kind, vocab_size, mask, tokenizers.__version__, *chunks)
    folder = Path(cache_dir).expanduser() / "tokenizers" / key
    build_once(
        folder,
        lambda temporary: train_tokenizer(kind, texts, vocab_size, mask).save(
            temporary / "tokenizer.json"
        ),
    )
    return load_tokenizer(folder / "tokenizer.json")


def cached_tokens(
    examples: Examples,
    tokenizer: Tokenizer,
    objective: str,
    labels: tuple[str, ...],
    *,
    max_source_length: int,
    max_target_length: int,
    too_long: TooLong,
    cache_dir: str | Path,
) -> TokenArrays:
    """tokenise, kept under cache_dir/tokens/<fingerprint> and memory-mapped from there."""
    limits: dict[str, Any] = dict(
        max_source_length=max_source_length, max_target_length=max_target_length, too_long=too_long
    )
    key = _fingerprint(examples, tokenizer, objective, labels, limits)
    folder = Path(cache_dir).expanduser() / "tokens" / key
    names = _BATCH_COLUMNS[objective]

    def build(temporary: Path) -> None:
        arrays = tokenise(examples, tokenizer, objective, labels, **limits)
        for name in names:
            np.save(temporary / f"{name}.npy", arrays.columns[name])
            np.save(temporary / f"{name}_offsets.npy", arrays.offsets[name])
        (temporary / "too_long.json").write_text(json.dumps(arrays.too_long))

    def mapped(name: str) -> np.ndarray:
        # A plain view of the mapped file: slicing np.memmap itself is many times slower.
        return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))

    build_once(folder, build)
    return TokenArrays(
        columns={name: mapped(name) for name in names},
        offsets={name: mapped(f"{name}_offsets") for name in names},
        too_long=json.loads((folder / "too_long.json").read_text()),
        fingerprint=key,
    )


class TrainStreams:
    """Endless training batches, reshuffled every epoch, from `streams` streams side by side.

    The shuffled order is dealt out to the streams in turn, so every epoch has each example once,
    whatever the number of streams. A stream gives batch_size / streams adjacent rows of a batch.
    Only the streams are read that the wanted rows are of; those of the others are zeros. So hosts
    that each want the rows of their devices have, among them, the batches of one that wants all.

    Attributes:
        fingerprint: SHA-256 of everything that decides the batches. A state means nothing to
            streams of another fingerprint.
    """

    fingerprint: str

    def __init__(
        self,
        arrays: TokenArrays,
        *,
        batch_size: int,
        streams: int,
        packing: bool,
        lengths: dict[str, int],
        seed: int,
        masking: Masking | None = None,
        rows: Sequence[int] | None = None,
    ):
        """Streams over the examples of `arrays`.

        Args:
            batch_size: rows of a global batch, a multiple of `streams`.
            packing: several examples a row (first fit), or one.
            lengths: tokens of a row, by columns.
            seed: decides the order and the masks.
            masking: for masked_lm: masks are drawn anew for every batch.
            rows: the numbers of the rows of a batch that are wanted, ascending (None: all).

        Raises:
            ValueError: batch_size is no multiple of streams, or an example is longer than a row.
        """
        if batch_size % streams:
            raise ValueError(
                f"data.batch_size={batch_size} is not a multiple of data.streams={streams}"
            )
        lengths = {name: lengths[name] for name in arrays.columns}
        for name, length in lengths.items():
            longest = int(np.diff(arrays.offsets[name]).max())
            if longest > length:
                raise ValueError(
                    f"the longest example has {longest} tokens in {name!r}, a row only {length}: "
                    "data.row_*_length must be at least data.max_*_length"
                )
        settings = [batch_size, streams, packing, lengths, seed, PACKING_BINS]
        masks = dataclasses.asdict(masking) if masking else None
        self.fingerprint = fingerprint(arrays.fingerprint, *settings, masks)
        order = grain.MapDataset.source(arrays).seed(seed).shuffle().repeat()
        size = batch_size // streams
        wanted = np.ones(batch_size, bool) if rows is None else np.isin(np.arange(batch_size), rows)
        by_stream = wanted.reshape(streams, size)
        if np.any(by_stream.any(axis=1) != by_stream.all(axis=1)):
            logging.warning(
                "data.streams=%d: some streams are read by several hosts, each for a part of its "
                "rows. With data.streams=%d each would be read by one, but the order of the data "
                "would be another",
                *(streams, batch_size // _largest_pieces(wanted)),
            )
        self._count = streams
        self._streams = {
            stream: iter(
                _rows(
                    order[stream::streams],
                    rows=size,
                    packing=packing,
                    lengths=lengths,
                    seed=seed,
                    masking=masking,
                    mask_seed=seed * streams + stream,  # else all streams drew the same masks
                )
            )
            for stream in np.flatnonzero(by_stream.any(axis=1)).tolist()
        }

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        parts = {stream: next(batches) for stream, batches in self._streams.items()}
        # Zeros take no memory as long as nobody looks at them.
        batch = {
            name: np.zeros((self._count, *part.shape), part.dtype)
            for name, part in next(iter(parts.values())).items()
        }
        for stream, part in parts.items():
            for name, rows in part.items():
                batch[name][stream] = rows
        return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in batch.items()}

    def get_state(self) -> dict[str, dict[str, Any]]:
        """JSON-able state of each stream that is read, by its number, after the last batch."""
        return {str(i): stream.get_state() for i, stream in self._streams.items()}

    def set_state(self, states: dict[str, dict[str, Any]]) -> None:
        """Continues with the batch after the one at which get_state gave `states`.

        Those of streams that are not read may be among them.

        Raises:
            ValueError: the states are of another number of streams.
        """
        if states.keys() not in (set(map(str, self._streams)), set(map(str, range(self._count)))):
            raise ValueError(f"states of {len(states)} streams, but data.streams={self._count}")
        for i, stream in self._streams.items():
            stream.set_state(states[str(i)])


def _largest_pieces(wanted: Bool[np.ndarray, " B"]) -> int:
    """The most rows of equal pieces of a batch of which each is wanted as a whole or not at all."""
    ends = np.flatnonzero(np.diff(wanted)) + 1
    return int(np.gcd.reduce(np.append(ends, len(wanted))))


def _rows(
    examples: grain.MapDataset,
    *,
    rows: int,
    packing: bool,
    lengths: dict[str, int],
    seed: int,
    masking: Masking | None,
    mask_seed: int,
) -> grain.IterDataset:
    """One stream: batches of `rows` rows, packed or padded to `lengths`, and masked."""
    # The arrays are in memory: threads that read ahead would cost more than the reading.
    stream = examples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if packing:
        packed = grain.experimental.FirstFitPackIterDataset(
            stream,
            length_struct=lengths,
            num_packing_bins=PACKING_BINS,
            seed=seed,
            meta_features=[name for name in lengths if name == _LABELS],
        )
        batches = packed.batch(rows)
    else:
        batches = stream.batch(rows, batch_fn=functools.partial(_pad, lengths=lengths))
    # Whole batches at a time: to seed a generator for each example would double the costs.
    return batches.random_map(masking, seed=mask_seed) if masking else batches


def _pad(
    examples: Sequence[Mapping[str, Sequence[int] | np.ndarray]], lengths: dict[str, int]
) -> Batch:
    """One example a row, padded to `lengths`, with segment ids (1) and positions."""
    batch = {}
    for name, length in lengths.items():
        rows = [np.asarray(example[name], np.int32) for example in examples]
        real = np.arange(length) < np.array([len(row) for row in rows])[:, None]
        tokens = np.full(real.shape, PAD_ID, np.int32)
        tokens[real] = np.concatenate(rows)
        positions = np.where(real, np.arange(length), 0).astype(np.int32)
        batch |= zip(_keys(name), (tokens, real.astype(np.int32), positions), strict=False)
    return batch


def eval_batches(
    arrays: TokenArrays, *, batch_size: int, masking: Masking | None = None
) -> list[tuple[Batch, Int64[np.ndarray, " B"]]]:
    """Every example once, one a row, sorted by length (longest first) into few shapes.

    Masks of masked_lm are drawn by the example's number, and so the same in every evaluation.

    Returns:
        Pairs of a batch of batch_size rows and the number of the example in each row; -1 marks a
        row of padding, which fills up the last batch. Lengths of the last column are rounded up to
        8, 16, 24, 32, 48, 64, 96 ...; batches that are equal in it are equal in all.
    """
    lengths = {name: np.diff(offsets) for name, offsets in arrays.offsets.items()}
    longest = {name: int(column.max()) for name, column in lengths.items()}
    batches = _one_a_row(arrays, lengths, batch_size, longest)
    if masking is None:
        return batches
    return [(_mask_rows(batch, index, masking), index) for batch, index in batches]


def _mask_rows(batch: Batch, index: Int64[np.ndarray, " B"], masking: Masking) -> Batch:
    rows = [
        masking({name: values[row] for name, values in batch.items()}, np.random.default_rng(seed))
        for row, seed in enumerate(index + 1)  # a seed must not be negative
    ]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def prompt_batches(
    examples: Sequence[dict[str, list[int]]], *, batch_size: int, max_length: int
) -> list[tuple[Batch, Int64[np.ndarray, " B"]]]:
    """Examples (ids, by columns) that came in by hand, batched as by eval_batches.

    max_length: tokens of an example at most; no row is longer.
    """
    if not examples:
        return []
    lengths = {name: np.array([len(e[name]) for e in examples], np.int64) for name in examples[0]}
    return _one_a_row(examples, lengths, batch_size, dict.fromkeys(lengths, max_length))


def _one_a_row(
    examples: TokenArrays | Sequence[dict[str, list[int]]],
    lengths: dict[str, Int64[np.ndarray, " n"]],
    batch_size: int,
    most: dict[str, int],
) -> list[tuple[Batch, Int64[np.ndarray, " B"]]]:
    names = list(lengths)
    no_example = dict.fromkeys(names, ())
    groups = _groups(np.lexsort([-lengths[name] for name in names]), batch_size)
    shapes = [[_bucket(lengths[name], group, most[name]) for name in names] for group in groups]
    widest: dict[int, list[int]] = {}
    for shape in shapes:
        *_, last = shape
        widest[last] = list(map(max, shape, widest.get(last, shape)))
    return [
        (
            _pad(
                [examples[i] if i >= 0 else no_example for i in group],
                dict(zip(names, widest[last], strict=True)),
            ),
            group,
        )
        for group, (*_, last) in zip(groups, shapes, strict=True)
    ]


def _groups(order: Int64[np.ndarray, " n"], batch_size: int) -> Int64[np.ndarray, "groups B"]:
    """The order cut into groups of batch_size, -1 where the last one has no example."""
    missing = -len(order) % batch_size
    return np.pad(order, (0, missing), constant_values=-1).reshape(-1, batch_size)


def _bucket(lengths: Int64[np.ndarray, " n"], group: Int64[np.ndarray, " B"], most: int) -> int:
    """The longest length of the group, rounded up to 2^k or 3 * 2^k, at least 8, at most `most`.

    So no row is longer than the limits of the data.
    """
    longest = int(lengths[group[group >= 0]].max())
    power = max(8, 1 << (longest - 1).bit_length())
    three_quarters = power * 3 // 4
    rounded = three_quarters if power > 16 and longest <= three_quarters else power
    return min(rounded, most)
