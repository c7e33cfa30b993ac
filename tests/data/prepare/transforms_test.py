import itertools

import pytest

from transformer_jax.data.prepare.recipe import Limits
from transformer_jax.data.prepare.tokenizer import BOS_ID, EOS_ID, SpecialIds
from transformer_jax.data.prepare.transforms import (
    label_number,
    labelled,
    numbered,
    pieces,
)

DOCUMENTS = [list(range(4, 4 + length)) for length in (11, 0, 1, 9, 72)]


@pytest.mark.parametrize("length", [1, 3, 7, 12, 100])
def test_the_pieces_of_documents_joined_are_the_documents(length):
    found = pieces(DOCUMENTS, length)
    assert list(itertools.chain.from_iterable(found)) == list(itertools.chain(*DOCUMENTS))
    # Only the last piece of a document is shorter, and no piece reaches into the next document.
    assert [len(piece) for piece in found] == [
        size for ids in DOCUMENTS for size in _sizes(len(ids), length)
    ]


def _sizes(total, length):
    full, rest = divmod(total, length)
    return [length] * full + [rest] * (rest > 0)


@pytest.mark.parametrize("length", [0, -1])
def test_pieces_need_room(length):
    with pytest.raises(ValueError, match=f"{length} tokens: data.max_.*_length leaves no room"):
        pieces(DOCUMENTS, length)


def test_labels_count_from_one_and_an_unknown_one_is_named():
    numbers = numbered(("DET", "NOUN", "X"))
    assert [label_number(label, numbers) for label in ("X", "DET", "NOUN")] == [3, 1, 2]
    with pytest.raises(ValueError, match="'VERB' is none of those known: DET, NOUN, X"):
        label_number("VERB", numbers)


SENTENCES = [[4, 5, 6], [7], [], [8, 9]]
PLACES = [[0, 1, 0, 2], [3, 0], [1], [0, 2, 2]]


def test_labels_lie_along_sentences_between_bos_and_eos():
    rows, too_long = labelled(SENTENCES, PLACES, Limits(5, 0, "drop"), SpecialIds())
    assert too_long == 0
    assert rows == {
        "inputs": [[BOS_ID, *ids, EOS_ID] for ids in SENTENCES],
        "labels": [[*place, 0] for place in PLACES],
    }


def test_too_long_sentences_are_left_out_or_cut_with_their_labels_and_counted():
    """Three tokens leave room for one between bos and eos."""
    rows, too_long = labelled(SENTENCES, PLACES, Limits(3, 0, "drop"), SpecialIds())
    assert too_long == 2
    assert rows == {
        "inputs": [[BOS_ID, 7, EOS_ID], [BOS_ID, EOS_ID]],
        "labels": [[3, 0, 0], [1, 0]],
    }
    rows, too_long = labelled(SENTENCES, PLACES, Limits(3, 0, "truncate"), SpecialIds())
    assert too_long == 2
    assert rows == {
        "inputs": [[BOS_ID, 4, EOS_ID], [BOS_ID, 7, EOS_ID], [BOS_ID, EOS_ID], [BOS_ID, 8, EOS_ID]],
        "labels": [[0, 1, 0], [3, 0, 0], [1, 0], [0, 2, 0]],
    }
