"""Contiguous text: readers go on where they stood, and read every token once an epoch."""

import dataclasses

import numpy as np
import pytest

from tests.data.numbered import TEXTS, make_arrays
from transformer_jax.data.serve.continuous_rows import Text, contiguous_batches, contiguous_streams

LENGTHS = (7, 1, 12, 3, 5, 9)  # of documents, eos included
EOS = 7  # of an imported tokenizer; there 1 may be any token
DOCUMENTS = [
    [1, *range(100 * n + 10, 100 * n + 8 + size), EOS][-size:] for n, size in enumerate(LENGTHS)
]
TEXT = np.concatenate(DOCUMENTS).astype(np.int32)
PLACES = np.concatenate([np.arange(size) for size in LENGTHS])  # of each token in its document
LENGTH = 5
NAMES = ("targets", "targets_segment_ids", "targets_positions")


def arrays():
    """Cut into pieces, which must not matter."""
    offsets = np.arange(0, len(TEXT) + 1, 1)
    base = make_arrays(3, TEXTS)
    return dataclasses.replace(base, columns={"targets": TEXT}, offsets={"targets": offsets})


def readers(length=LENGTH, batch_size=4, streams=2):
    return contiguous_streams(
        arrays(), eos=EOS, length=length, batch_size=batch_size, streams=streams
    )


def test_each_reader_goes_through_all_of_the_text():
    """Three epochs: all that a row reads is the text from its origin on, again and again. Positions
    are those in documents, or since the reader began in the middle of one. The segments of a row
    count its documents from 1."""
    stream, count = readers(), 3 * len(TEXT) // LENGTH
    batches = [next(stream) for _ in range(count)]
    for batch in batches:
        _, segments, positions = (batch[name] for name in NAMES)
        np.testing.assert_array_equal(segments[:, 0], 1)
        np.testing.assert_array_equal(np.diff(segments), positions[:, 1:] == 0)
    tokens, segments, positions = (np.concatenate([b[n] for b in batches], 1) for n in NAMES)
    for row, origin in enumerate(np.arange(4) * len(TEXT) // 4):
        places = (origin + np.arange(tokens.shape[1])) % len(TEXT)
        np.testing.assert_array_equal(tokens[row], TEXT[places])
        since = np.minimum(PLACES[places], np.arange(len(places)))
        np.testing.assert_array_equal(positions[row], since)
    assert tokens.dtype == segments.dtype == positions.dtype == np.int32
    share = -(-len(TEXT) // 4)
    assert set(tokens[:, :share].ravel()) == set(TEXT)


def test_a_state_continues_with_the_next_batch():
    stream, other = readers(), readers()
    for _ in range(7):
        next(stream)
    assert stream.passes(stream.get_state()) == pytest.approx(7 * 4 * LENGTH / len(TEXT))
    other.set_state(stream.get_state())
    for _ in range(3):
        np.testing.assert_equal(next(other), next(stream))


def test_what_decides_the_batches_is_in_the_fingerprint():
    others = [readers(batch_size=2), readers(streams=4), readers(length=LENGTH + 1)]
    assert len({readers().fingerprint} | {other.fingerprint for other in others}) == 4
    assert readers().fingerprint == readers().fingerprint


@pytest.mark.parametrize(("readers", "rows"), [(1, 1), (3, 3), (3, 8), (8, 8), (50, 56)])
def test_every_token_is_scored_once_and_in_order(readers, rows):
    batches = contiguous_batches(arrays(), eos=EOS, readers=readers, batch_size=rows, length=LENGTH)
    read = [[] for _ in range(rows)]
    for batch, numbers in batches:
        tokens, segments, positions = (batch[name] for name in NAMES)
        real = segments > 0
        np.testing.assert_array_equal(numbers, np.where(real.any(1), np.arange(rows), -1))
        assert not tokens[~real].any() and not positions[~real].any()
        for row in range(rows):
            read[row].extend(tokens[row][real[row]])
    np.testing.assert_array_equal(np.concatenate(read), TEXT)
    assert max(map(len, read)) - 1 < len(TEXT) / readers  # equal parts
    first, _ = batches[0]
    assert not first["targets_positions"][:, 0].any()


def test_documents_are_found_across_pieces_that_are_read_apart(monkeypatch):
    monkeypatch.setattr("transformer_jax.data.serve.continuous_rows.CHUNK", 4)
    text = Text(arrays(), EOS)
    batch = text.read(np.zeros(1, np.int64), 0, len(TEXT))
    np.testing.assert_array_equal(batch["targets_positions"][0], PLACES)
