"""Contiguous text: each row of a batch is a reader of its own, which goes on where it stood."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.prepare.arrays import CHUNK, TokenArrays
from transformer_jax.data.prepare.recipe import Batch, NumberedBatch
from transformer_jax.data.prepare.tokenizer import PAD_ID
from transformer_jax.data.serve.streams import TrainStreams, own_states


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
            left = np.minimum(most, len(self) - origins)[:, None]
            real = read < left
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


class Readers:
    """Endless training batches of contiguous text, in place of `TrainStreams`.

    The readers start evenly spread over the text, and each goes on through all of it: in an epoch
    they read every token once. Nothing is shuffled.

    Attributes:
        fingerprint: SHA-256 of everything that decides the batches.
    """

    fingerprint: str

    def __init__(
        self,
        arrays: TokenArrays,
        *,
        eos: int,
        length: int,
        batch_size: int,
        streams: int,
        rows: Sequence[int] | None = None,
    ):
        """Arguments as of `TrainStreams` and `Text`; `length`: tokens of a row."""
        self._text, self._length = Text(arrays, eos), length
        self._origins = np.arange(batch_size) * len(self._text) // batch_size
        self._rows = np.arange(batch_size) if rows is None else np.asarray(rows)
        self._streams = np.unique(self._rows // (batch_size // streams)).tolist()
        self._count, self._batches = streams, 0
        settings = ["contiguous", length, batch_size, streams]
        self.fingerprint = fingerprint(arrays.fingerprint, *settings)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        far = self._batches * self._length
        self._batches += 1
        batch = {}
        read = self._text.read(self._origins[self._rows], far, self._length)
        for name, values in read.items():
            batch[name] = np.zeros((len(self._origins), self._length), np.int32)
            batch[name][self._rows] = values
        return batch

    def get_state(self) -> dict[str, dict[str, int]]:
        """How many batches have been read, of each stream that has rows here."""
        return {str(stream): {"batches": self._batches} for stream in self._streams}

    def set_state(self, states: dict[str, dict[str, int]]) -> None:
        """Continues after the batch at which get_state gave `states`. Raises as `own_states`."""
        first, *_ = own_states(states, self._streams, self._count).values()
        self._batches = first["batches"]


# Batches without end, of whichever kind
Endless = TrainStreams | Readers


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
    found = []
    for far in range(0, share, length):
        batch = text.read(origins, far, length, most=share)
        _, segments, _ = batch.values()
        numbers = np.where(segments.any(axis=1), np.arange(batch_size), -1)
        found.append((batch, numbers))
    return found
