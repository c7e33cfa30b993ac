"""Contiguous text: each row of a batch is a reader of its own, which goes on where it stood."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.prepare.arrays import CHUNK, TokenArrays
from transformer_jax.data.prepare.recipe import Batch, NumberedBatch
from transformer_jax.data.prepare.tokenizer import PAD_ID
from transformer_jax.data.serve.streams import TrainStreams


class Text:
    """All documents of a split, one after the other, with the place at which each starts.

    eos: the id that each of them ends in.
    """

    def __init__(self, arrays: TokenArrays, eos: int):
        ((self._name, self._tokens),) = arrays.columns.items()
        ends = [np.zeros(1, np.int64)]
        for start in range(0, len(self), CHUNK):
            ends.append(np.flatnonzero(self._tokens[start : start + CHUNK] == eos) + start + 1)
        self._starts = np.concatenate(ends)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(
        self, origins: Int64[np.ndarray, " B"], far: int, length: int, most: int | None = None
    ) -> Batch:
        """Rows of `length` tokens, `far` tokens after the places at which readers started.

        Positions count from where a document starts, or from where its reader does: so the first
        one is above 0 where a row goes on with the document of the row before. Behind its end the
        text begins again.

        Args:
          most: tokens that a reader reads in all (None: any number); then comes padding.
        """
        read = far + np.arange(length)  # by each reader before a token
        places = (origins[:, None] + read) % len(self)
        starts = self._starts[np.searchsorted(self._starts, places, side="right") - 1]
        positions = np.minimum(places - starts, read)
        tokens = np.stack([self._slice(first, length) for first in places[:, 0].tolist()])
        segments = np.cumsum(positions == 0, axis=1) + (positions[:, :1] > 0)
        if most is not None:
            limits = np.minimum(most, len(self) - origins)[:, None]
            real = read < limits
            tokens, segments = np.where(real, tokens, PAD_ID), segments * real
            positions = positions * real
        names = (self._name, f"{self._name}_segment_ids", f"{self._name}_positions")
        rows = zip(names, (tokens, segments, positions), strict=True)
        return {name: values.astype(np.int32) for name, values in rows}

    def _slice(self, start: int, length: int) -> np.ndarray:
        parts, missing = [], length
        while missing:
            part = self._tokens[start : min(start + missing, len(self))]
            parts.append(part)
            start, missing = 0, missing - len(part)
        return np.concatenate(parts)


class _Readers:
    """The rows of one stream: readers that all have read as many batches."""

    def __init__(self, text: Text, origins: Int64[np.ndarray, " B"], length: int):
        self._text, self._origins, self._length = text, origins, length
        self._batches = 0

    def __next__(self) -> Batch:
        far = self._batches * self._length
        self._batches += 1
        return self._text.read(self._origins, far, self._length)

    def get_state(self) -> dict[str, int]:
        return {"batches": self._batches}

    def set_state(self, state: dict[str, int]) -> None:
        self._batches = state["batches"]


def contiguous_streams(
    arrays: TokenArrays,
    *,
    eos: int,
    length: int,
    batch_size: int,
    streams: int,
    rows: Sequence[int] | None = None,
) -> TrainStreams:
    """Training batches of contiguous text, in place of `shuffled_streams`.

    The readers start evenly spread over the text, and each goes on through all of it: in an epoch
    they read every token once. Nothing is shuffled.

    Args:
        eos: as of `Text`.
        length: tokens of a row.
        batch_size, streams, rows: as of `TrainStreams`.
    """
    text = Text(arrays, eos)
    origins = np.arange(batch_size) * len(text) // batch_size
    by_stream = np.split(origins, streams)
    return TrainStreams(
        lambda stream: _Readers(text, by_stream[stream], length),
        fingerprint(arrays.fingerprint, "contiguous", length, batch_size, streams),
        batch_size=batch_size,
        streams=streams,
        rows=rows,
        epoch=len(text) / (batch_size * length),
    )


def contiguous_batches(
    arrays: TokenArrays, *, eos: int, readers: int, batch_size: int, length: int
) -> list[NumberedBatch]:
    """Every token of a split once, in the order in which a model with memory reads it.

    The text is cut into as many equal parts as there are readers, each read by a row from batch to
    batch; rows whose part is at its end, or that have none, are padding, with the number -1.
    """
    text = Text(arrays, eos)
    share = -(-len(text) // readers)
    origins = np.minimum(np.arange(batch_size) * share, len(text))
    batches = []
    for far in range(0, share, length):
        batch = text.read(origins, far, length, most=share)
        _, segments, _ = batch.values()
        numbers = np.where(segments.any(axis=1), np.arange(batch_size), -1)
        batches.append((batch, numbers))
    return batches
