"""Examples to token arrays (tokenised once, cached), and token arrays to batches.

Training draws from fixed streams over a shuffled order, each with its own packer (Grain's) and its
own small state; evaluation sorts by length into a few fixed shapes.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grain
import grain.experimental
import numpy as np
import tokenizers
from jaxtyping import Int32, Int64

from transformer_jax.data.cache import build_once, fingerprint
from transformer_jax.data.sources import Examples
from transformer_jax.data.tokenizer import (
    EOS_ID,
    PAD_ID,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)

Batch = dict[str, Int32[np.ndarray, "B length"]]
TooLong = Literal["drop", "truncate"]

# Rows that a stream fills side by side before it hands them out: more rows leave less padding,
# fewer are packed anew when a run resumes.
PACKING_BINS = 32
_CHUNK = 16_384  # examples handled at a time, which bounds the memory that lists of ints take
_NO_EXAMPLE = {"inputs": np.zeros(0, np.int32), "targets": np.zeros(0, np.int32)}
_ARRAY_NAMES = ("inputs", "inputs_offsets", "targets", "targets_offsets")


@dataclass(frozen=True)
class TokenArrays:
    """The token ids of a split; example i has inputs[inputs_offsets[i] : inputs_offsets[i + 1]].

    Attributes:
        inputs, targets: ids of all examples, one after the other, each example ending with eos.
        inputs_offsets, targets_offsets: where each example starts, and at last where all end.
        too_long: examples that were longer than the limits, and so left out or truncated.
        fingerprint: SHA-256 of the examples, the tokenizer and the limits that made the arrays.
    """

    inputs: Int32[np.ndarray, " source_tokens"]
    inputs_offsets: Int64[np.ndarray, " n+1"]
    targets: Int32[np.ndarray, " target_tokens"]
    targets_offsets: Int64[np.ndarray, " n+1"]
    too_long: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.inputs_offsets) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Example `index` as {"inputs", "targets"}: this makes the arrays a Grain source."""
        return {
            "inputs": self.inputs[self.inputs_offsets[index] : self.inputs_offsets[index + 1]],
            "targets": self.targets[self.targets_offsets[index] : self.targets_offsets[index + 1]],
        }


def tokenise(
    examples: Examples,
    tokenizer: Tokenizer,
    *,
    max_source_length: int,
    max_target_length: int,
    too_long: TooLong,
) -> TokenArrays:
    """The examples as token arrays, eos appended to each side.

    Args:
        max_source_length, max_target_length: tokens of one example, eos included.
        too_long: "drop" leaves longer examples out (training), "truncate" keeps their beginning
            (evaluation), followed by eos in sources alone: a target that is cut does not end there.
            Both are counted.

    Raises:
        ValueError: no example is left.
    """
    chunks = []
    longer = 0
    for source_texts, target_texts in zip(
        _chunks(examples["source"]), _chunks(examples["target"]), strict=True
    ):
        sources, targets = tokenizer.encode(source_texts), tokenizer.encode(target_texts)
        fits = [
            len(source) < max_source_length and len(target) < max_target_length
            for source, target in zip(sources, targets, strict=True)
        ]
        longer += fits.count(False)
        if too_long == "drop":
            sources = itertools.compress(sources, fits)
            targets = itertools.compress(targets, fits)
        chunks.append(
            _flatten([*ids[: max_source_length - 1], EOS_ID] for ids in sources)
            + _flatten([*ids, EOS_ID][:max_target_length] for ids in targets)
        )
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    if not columns or not columns[1].size:
        raise ValueError(
            f"no example is left of {len(examples['source'])}: {longer} are longer than "
            f"data.max_source_length={max_source_length} or "
            f"data.max_target_length={max_target_length} tokens"
        )
    inputs, input_lengths, targets, target_lengths = columns
    return TokenArrays(
        inputs=inputs,
        inputs_offsets=np.concatenate([[0], input_lengths]).cumsum(),
        targets=targets,
        targets_offsets=np.concatenate([[0], target_lengths]).cumsum(),
        too_long=longer,
        fingerprint=_fingerprint(
            examples, tokenizer, max_source_length, max_target_length, too_long
        ),
    )


def _flatten(
    rows: Iterable[list[int]],
) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " n"]]:
    """The rows as one array, and their lengths."""
    rows = list(rows)
    lengths = np.array([len(row) for row in rows], np.int64)
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, count=lengths.sum())
    return flat, lengths


def _fingerprint(examples: Examples, tokenizer: Tokenizer, *limits: int | str) -> str:
    texts = [*_chunks(examples["source"]), *_chunks(examples["target"])]
    return fingerprint(tokenizer.fingerprint, limits, *texts)


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    return (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))


def cached_tokenizer(
    kind: str, examples: Examples, vocab_size: int, *, cache_dir: str | Path
) -> Tokenizer:
    """train_tokenizer on both sides of the examples, kept under cache_dir/tokenizers."""
    texts = [*examples["source"], *examples["target"]]
    key = fingerprint(kind, vocab_size, tokenizers.__version__, *_chunks(texts))
    folder = Path(cache_dir).expanduser() / "tokenizers" / key
    build_once(
        folder,
        lambda temporary: train_tokenizer(kind, texts, vocab_size).save(
            temporary / "tokenizer.json"
        ),
    )
    return load_tokenizer(folder / "tokenizer.json")


def cached_tokens(
    examples: Examples,
    tokenizer: Tokenizer,
    *,
    max_source_length: int,
    max_target_length: int,
    too_long: TooLong,
    cache_dir: str | Path,
) -> TokenArrays:
    """tokenise, kept under cache_dir/tokens/<fingerprint> and memory-mapped from there."""
    key = _fingerprint(examples, tokenizer, max_source_length, max_target_length, too_long)
    folder = Path(cache_dir).expanduser() / "tokens" / key

    def build(temporary: Path) -> None:
        arrays = tokenise(
            examples,
            tokenizer,
            max_source_length=max_source_length,
            max_target_length=max_target_length,
            too_long=too_long,
        )
        for name in _ARRAY_NAMES:
            np.save(temporary / f"{name}.npy", getattr(arrays, name))
        (temporary / "too_long.json").write_text(json.dumps(arrays.too_long))

    build_once(folder, build)
    return TokenArrays(
        # A plain view of the mapped file: slicing np.memmap itself is many times slower.
        **{n: np.asarray(np.load(folder / f"{n}.npy", mmap_mode="r")) for n in _ARRAY_NAMES},
        too_long=json.loads((folder / "too_long.json").read_text()),
        fingerprint=key,
    )


class TrainStreams:
    """Endless training batches, reshuffled every epoch, from `streams` streams side by side.

    The shuffled order is dealt out to the streams in turn, so every epoch has each example once,
    whatever the number of streams. A stream gives batch_size / streams adjacent rows of a batch.

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
        source_length: int,
        target_length: int,
        seed: int,
    ):
        """Streams over the examples of `arrays`.

        Args:
            batch_size: rows of a global batch, a multiple of `streams`.
            packing: several examples a row (first fit), or one.
            source_length, target_length: tokens of a row.
            seed: decides the order.

        Raises:
            ValueError: batch_size is no multiple of streams, or an example is longer than a row.
        """
        if batch_size % streams:
            raise ValueError(
                f"data.batch_size={batch_size} is not a multiple of data.streams={streams}"
            )
        lengths = {"inputs": source_length, "targets": target_length}
        for name, length in lengths.items():
            longest = int(_lengths(arrays, name).max())
            if longest > length:
                raise ValueError(
                    f"the longest example has {longest} tokens in {name!r}, a row only {length}: "
                    "data.row_*_length must be at least data.max_*_length"
                )
        self.fingerprint = fingerprint(
            arrays.fingerprint, batch_size, streams, packing, lengths, seed, PACKING_BINS
        )
        order = grain.MapDataset.source(arrays).seed(seed).shuffle().repeat()
        self._streams = [
            iter(
                _rows(
                    order[stream::streams],
                    rows=batch_size // streams,
                    packing=packing,
                    lengths=lengths,
                    seed=seed,
                )
            )
            for stream in range(streams)
        ]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        parts = [next(stream) for stream in self._streams]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def get_state(self) -> dict[str, dict[str, Any]]:
        """JSON-able state of each stream, by its number, after the batch given last."""
        return {str(i): stream.get_state() for i, stream in enumerate(self._streams)}

    def set_state(self, states: dict[str, dict[str, Any]]) -> None:
        """Continues with the batch after the one at which get_state gave `states`.

        Raises:
            ValueError: the states are of another number of streams.
        """
        if set(states) != {str(i) for i in range(len(self._streams))}:
            raise ValueError(
                f"states of {len(states)} streams, but data.streams={len(self._streams)}"
            )
        for i, stream in enumerate(self._streams):
            stream.set_state(states[str(i)])


def _rows(
    examples: grain.MapDataset,
    *,
    rows: int,
    packing: bool,
    lengths: dict[str, int],
    seed: int,
) -> grain.IterDataset:
    """One stream: batches of `rows` rows, packed or padded to `lengths`."""
    # The arrays are in memory: threads that read ahead would cost more than the reading.
    stream = examples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if packing:
        packed = grain.experimental.FirstFitPackIterDataset(
            stream, length_struct=lengths, num_packing_bins=PACKING_BINS, seed=seed
        )
        return packed.batch(rows)

    def pad_rows(batch: Sequence[dict[str, np.ndarray]]) -> Batch:
        sides = [_pad(k, [example[k] for example in batch], n) for k, n in lengths.items()]
        return sides[0] | sides[1]

    return stream.batch(rows, batch_fn=pad_rows)


def _pad(name: str, rows: Sequence[Sequence[int] | np.ndarray], length: int) -> Batch:
    """One example a row, padded to `length`, with its segment ids (1) and positions."""
    row_lengths = np.array([len(row) for row in rows])
    real = np.arange(length) < row_lengths[:, None]
    tokens = np.full(real.shape, PAD_ID, np.int32)
    tokens[real] = np.concatenate([np.asarray(row, np.int32) for row in rows])
    return {
        name: tokens,
        f"{name}_segment_ids": real.astype(np.int32),
        f"{name}_positions": np.where(real, np.arange(length), 0).astype(np.int32),
    }


def eval_batches(
    arrays: TokenArrays, *, batch_size: int
) -> list[tuple[Batch, Int64[np.ndarray, " B"]]]:
    """Every example once, one a row, sorted by length (longest first) into few shapes.

    Returns:
        Pairs of a batch of batch_size rows and the number of the example in each row; -1 marks a
        row of padding, which fills up the last batch. Target lengths are rounded up to 8, 16, 24,
        32, 48, 64, 96 ...; batches of one target length have one source length.
    """
    source_lengths, target_lengths = _lengths(arrays, "inputs"), _lengths(arrays, "targets")
    groups = _groups(np.lexsort((-source_lengths, -target_lengths)), batch_size)
    shapes = [(_bucket(source_lengths, group), _bucket(target_lengths, group)) for group in groups]
    widest: dict[int, int] = {}
    for source_length, target_length in shapes:
        widest[target_length] = max(source_length, widest.get(target_length, 0))
    batches = []
    for group, (_, target_length) in zip(groups, shapes, strict=True):
        examples = [arrays[i] if i >= 0 else _NO_EXAMPLE for i in group]
        inputs = _pad("inputs", [e["inputs"] for e in examples], widest[target_length])
        targets = _pad("targets", [e["targets"] for e in examples], target_length)
        batches.append((inputs | targets, group))
    return batches


def source_batches(
    sources: Sequence[Sequence[int]], *, batch_size: int
) -> list[tuple[Batch, Int64[np.ndarray, " B"]]]:
    """Sources (ids, eos included) to translate, batched as by eval_batches, `inputs` keys only."""
    lengths = np.array([len(source) for source in sources], np.int64)
    return [
        (
            _pad("inputs", [sources[i] if i >= 0 else () for i in group], _bucket(lengths, group)),
            group,
        )
        for group in _groups(np.argsort(-lengths, kind="stable"), batch_size)
    ]


def _lengths(arrays: TokenArrays, name: str) -> Int64[np.ndarray, " n"]:
    return np.diff(getattr(arrays, f"{name}_offsets"))


def _groups(order: Int64[np.ndarray, " n"], batch_size: int) -> Int64[np.ndarray, "groups B"]:
    """The order cut into groups of batch_size, -1 where the last one has no example."""
    missing = -len(order) % batch_size
    return np.pad(order, (0, missing), constant_values=-1).reshape(-1, batch_size)


def _bucket(lengths: Int64[np.ndarray, " n"], group: Int64[np.ndarray, " B"]) -> int:
    """The longest length of the group, rounded up to 2^k or 3 * 2^k, at least 8.

    Never more than the longest of all, so that no row is longer than the limits of the data.
    """
    longest = int(lengths[group[group >= 0]].max())
    power = max(8, 1 << (longest - 1).bit_length())
    three_quarters = power * 3 // 4
    rounded = three_quarters if power > 16 and longest <= three_quarters else power
    return min(rounded, int(lengths.max()))
