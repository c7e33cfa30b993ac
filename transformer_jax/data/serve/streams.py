"""Endless training batches from fixed streams over a shuffled order, each with its own packer."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from absl import logging
from jaxtyping import Bool

from transformer_jax.data.cache import fingerprint
from transformer_jax.data.prepare.arrays import TokenArrays
from transformer_jax.data.prepare.recipe import Batch, Column, Corrupt, Draw
from transformer_jax.data.serve.mixture import FEW, Mixture, endless, position
from transformer_jax.data.serve.rows import PACKING_BINS, batched_rows


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
        weights: Sequence[float] = (1,),
    ):
        """Streams over the examples of one set, or of several that are mixed.

        Args:
            columns: what the arrays of each set hold, or `corrupt` makes of it.
            lengths: places of a row, by columns.
            batch_size: rows of a global batch, a multiple of `streams`.
            packing: several examples a row (first fit), or one.
            seed: decides the order and what is drawn.
            draw: drawn anew for every batch.
            corrupt: makes the columns of each example, anew every epoch; they fit the rows.
            rows: the numbers of the rows of a batch that are wanted, ascending (None: all).
            weights: of the sets.

        Raises:
            ValueError: batch_size is no multiple of streams, an example is longer than a row, or as
                `Mixture`.
        """
        if batch_size % streams:
            raise ValueError(
                f"data.batch_size={batch_size} is not a multiple of data.streams={streams}"
            )
        lengths = {name: lengths[name] for name in columns}
        if corrupt is None:
            _check_lengths(sets, lengths)
        settings: list[Any] = [batch_size, streams, packing, lengths, seed, PACKING_BINS]
        settings += ["few"] * any(len(arrays) < FEW for arrays in sets)
        self._mixture = Mixture(sets, weights, seed) if len(sets) > 1 else None
        if self._mixture is None:
            order = endless(sets[0], seed)
        else:
            order = grain.MapDataset.source(self._mixture)
            settings.append(self._mixture.counts.tolist())
        if corrupt:
            order = order.random_map(corrupt, seed=seed)
        draws: Any = corrupt or draw
        settings.append(dataclasses.asdict(draws) if draws else None)
        self.fingerprint = fingerprint(*(arrays.fingerprint for arrays in sets), *settings)

        self._count = streams
        self._streams = {
            stream: iter(
                batched_rows(
                    order[stream::streams],
                    columns,
                    lengths,
                    rows=batch_size // streams,
                    packing=packing,
                    seed=seed,
                    draw=draw,
                    draw_seed=seed * streams + stream,  # else all streams would draw the same
                )
            )
            for stream in _streams_of(rows, batch_size, streams)
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
        """JSON-able state of each stream that is read, by its number, after the last batch.

        Of a mixture it holds as "drawn" how many examples of each set were read; what is not yet
        packed is read again.
        """
        states = {i: stream.get_state() for i, stream in self._streams.items()}
        if self._mixture is not None:
            for i, state in states.items():
                drawn = self._mixture.drawn(i, self._count, position(state))
                states[i] = state | {"drawn": drawn.tolist()}
        return {str(i): state for i, state in states.items()}

    def set_state(self, states: dict[str, dict[str, Any]]) -> None:
        """Continues with the batch after the one at which get_state gave `states`.

        Raises as `own_states`.
        """
        for i, state in own_states(states, self._streams, self._count).items():
            own = {key: value for key, value in state.items() if key != "drawn"}
            self._streams[i].set_state(own)


def own_states(states: Mapping[str, Any], streams: Iterable[int], count: int) -> dict[int, Any]:
    """The states of these streams, by their numbers.

    Args:
        states: of these, or of all `count` streams of a batch.

    Raises:
        ValueError: the states are of another number of streams.
    """
    own = {i: str(i) for i in streams}
    if states.keys() not in (set(own.values()), set(map(str, range(count)))):
        raise ValueError(f"states of {len(states)} streams, but data.streams={count}")
    return {i: states[key] for i, key in own.items()}


def _check_lengths(sets: Sequence[TokenArrays], lengths: Mapping[str, int]) -> None:
    """Raises ValueError where an example is longer than a row."""
    for name, length in lengths.items():
        longest = max(len(arrays.lengths[name]) for arrays in sets) - 1
        if longest > length:
            raise ValueError(
                f"the longest example has {longest} tokens in {name!r}, a row only {length}: "
                "data.row_*_length must be at least data.max_*_length"
            )


def _streams_of(rows: Sequence[int] | None, batch_size: int, streams: int) -> list[int]:
    """The streams that the wanted rows of a batch are of; warns where a part of one would do."""
    wanted = np.ones(batch_size, bool) if rows is None else np.isin(np.arange(batch_size), rows)
    by_stream = wanted.reshape(streams, -1)
    if np.any(by_stream.any(axis=1) != by_stream.all(axis=1)):
        logging.warning(
            "data.streams=%d: some streams are read by several hosts, each for a part of its rows. "
            "With data.streams=%d each would be read by one, but the order of the data would be "
            "another",
            streams,
            batch_size // _largest_pieces(wanted),
        )
    return np.flatnonzero(by_stream.any(axis=1)).tolist()


def _largest_pieces(wanted: Bool[np.ndarray, " B"]) -> int:
    """The most rows of equal pieces of a batch of which each is wanted as a whole or not at all."""
    ends = np.flatnonzero(np.diff(wanted)) + 1
    return int(np.gcd.reduce(np.append(ends, len(wanted))))
