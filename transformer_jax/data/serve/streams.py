"""Endless training batches from fixed streams over a shuffled order, each with its own packer."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import grain.experimental
import numpy as np
from absl import logging

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.prepare.recipe import Batch, Column, Corrupt, Draw
from transformer_jax.data.serve.batches import pad
from transformer_jax.data.serve.mixture import FEW, Mixture, endless, position

# Rows that a stream fills side by side before it yields them: more rows leave less padding, fewer
# are packed anew when a run resumes.
PACKING_BINS = 32


class TrainStreams:
    """Endless training batches from `streams` streams side by side.

    A stream gives batch_size / streams adjacent rows of a batch. Only the streams are read that the
    wanted rows are of; those of the others are zeros. So hosts that each want the rows of their
    devices have, among them, the batches of one that wants all.

    Attributes:
        fingerprint: SHA-256 of everything that decides the batches. A state means nothing to
            streams of another fingerprint.
    """

    fingerprint: str

    def __init__(
        self,
        make: Callable[[int], Any],
        fingerprint: str,
        *,
        batch_size: int,
        streams: int,
        rows: Sequence[int] | None,
        epoch: float,
        mixture: Mixture | None = None,
    ):
        """Streams that `make` makes.

        Args:
            make: the number of a stream -> an iterator over its rows of the batches, with
                get_state and set_state.
            batch_size: rows of a global batch, a multiple of `streams`.
            rows: the numbers of the rows of a batch that are wanted, ascending (None: all).
            epoch: the `position` of a stream when train has been read once.
            mixture: what is read; a state says as "drawn" how many examples of each set were read.
        """
        self.fingerprint, self._count, self._mixture = fingerprint, streams, mixture
        self._epoch = epoch
        wanted = np.ones(batch_size, bool) if rows is None else np.isin(np.arange(batch_size), rows)
        by_stream = wanted.reshape(streams, -1)
        if np.any(by_stream.any(axis=1) != by_stream.all(axis=1)):
            # Pieces of most rows, as many in each, that are wanted as a whole or not at all
            ends = np.append(np.flatnonzero(np.diff(wanted)) + 1, batch_size)
            logging.warning(
                "data.streams=%d: some streams are read by several hosts, each for a part of its "
                "rows. With data.streams=%d each would be read by one, but the order of the data "
                "would be another",
                streams,
                batch_size // int(np.gcd.reduce(ends)),
            )
        self._streams = {i: make(i) for i in np.flatnonzero(by_stream.any(axis=1)).tolist()}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        parts = {i: next(stream) for i, stream in self._streams.items()}
        # Zeros take no memory as long as nobody looks at them.
        batch = {
            name: np.zeros((self._count, *part.shape), part.dtype)
            for name, part in next(iter(parts.values())).items()
        }
        for i, part in parts.items():
            for name, rows in part.items():
                batch[name][i] = rows
        return {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in batch.items()}

    def get_state(self) -> dict[str, dict[str, Any]]:
        """JSON-able state of each stream that is read, by its number, after the last batch."""
        states = {i: stream.get_state() for i, stream in self._streams.items()}
        if self._mixture is not None:
            for i, state in states.items():  # what is not yet packed is read again
                counts = self._mixture.counts_by_set(i, self._count, position(state))
                states[i] = state | {"drawn": counts.tolist()}
        return {str(i): state for i, state in states.items()}

    def passes(self, states: Mapping[str, Mapping[str, Any]]) -> float | None:
        """How often train has been read by states of `get_state`.

        What the rows hold that are packed just now does not count. None: there is nothing else yet,
        or sets are mixed.
        """
        read = float(np.mean([position(state) for state in states.values()]))
        return read / self._epoch if read and self._mixture is None else None

    def set_state(self, states: dict[str, dict[str, Any]]) -> None:
        """Continues with the batch after the one at which get_state gave `states`.

        States of streams that are not read may be among them.
        """
        for i, stream in self._streams.items():
            state = states[str(i)]
            stream.set_state({key: value for key, value in state.items() if key != "drawn"})


def shuffled_streams(
    sets: Sequence[TokenArrays],
    columns: Mapping[str, Column],
    lengths: Mapping[str, int],
    *,
    batch_size: int,
    streams: int,
    packing: bool,
    seed: int,
    draw: Draw | None = None,
    corrupt: Corrupt | None = None,
    rows: Sequence[int] | None = None,
    weights: Sequence[float] = (),
) -> TrainStreams:
    """Streams over the examples of one set, or of several that are mixed, shuffled every epoch.

    The shuffled order is dealt out to the streams in turn, so every epoch has each example once,
    whatever the number of streams.

    Args:
        columns: what the arrays of each set hold, or `corrupt` makes of it.
        lengths: places of a row, by columns.
        packing: several examples a row (first fit), or one.
        seed: decides the order and what is drawn.
        draw: drawn anew for every batch.
        corrupt: makes the columns of each example, anew every epoch; they fit the rows.
        weights: of the sets, where there are several.
        batch_size, streams, rows: as of `TrainStreams`.

    Raises:
        ValueError: as `Mixture`.
    """
    settings: list[Any] = [batch_size, streams, packing, lengths, seed, PACKING_BINS]
    settings += ["few"] * any(len(arrays) < FEW for arrays in sets)
    mixture = Mixture(sets, weights, seed) if len(sets) > 1 else None
    if mixture is None:
        order = endless(sets[0], seed)
    else:
        order = grain.MapDataset.source(mixture)
        settings += [mixture.counts.tolist(), "an order for each set"]
    if corrupt:
        order = order.random_map(corrupt, seed=seed)
    draws: Any = corrupt or draw
    settings.append(dataclasses.asdict(draws) if draws else None)

    def make(stream: int) -> grain.DatasetIterator:
        # Files in use are in the page cache: threads that read ahead cost more than that reading
        # (four leave 0.56 of 0.83 million tokens a second), though they help on a cold disk (0.34,
        # not 0.2).
        unread = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        examples, size = order[stream::streams].to_iter_dataset(unread), batch_size // streams
        if packing:
            along = [name for name, column in columns.items() if column.along]
            batches = grain.experimental.FirstFitPackIterDataset(
                examples,
                length_struct=dict(lengths),
                num_packing_bins=PACKING_BINS,
                seed=seed,
                meta_features=along,
            ).batch(size)
        else:
            padded = functools.partial(pad, columns=columns, lengths=lengths)
            batches = examples.batch(size, batch_fn=padded)
        # Whole batches at a time: to seed a generator for each example would double the costs. By
        # the stream, else all would draw the same.
        return iter(batches.random_map(draw, seed=seed * streams + stream) if draw else batches)

    key = fingerprint(*(arrays.fingerprint for arrays in sets), *settings)
    return TrainStreams(
        make,
        key,
        batch_size=batch_size,
        streams=streams,
        rows=rows,
        epoch=sum(map(len, sets)) / streams,
        mixture=mixture,
    )
