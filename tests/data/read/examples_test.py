import pytest

from transformer_jax.data.read import examples as examples_file
from transformer_jax.data.read.examples import concatenate, gathered, sample
from transformer_jax.data.read.examples import hold_out as hold_out_of_pieces


def hold_out(examples, size, *, documents):
    """The two parts, from pieces of one example each."""
    rows = zip(*examples.values(), strict=True)
    pieces = [{name: [value] for name, value in zip(examples, row, strict=True)} for row in rows]
    parts: tuple[list, list] = [], []
    for of_validation, piece in hold_out_of_pieces(pieces, size, documents=documents):
        parts[of_validation].append(piece)
    return tuple(map(concatenate, parts))


def test_hold_out_leaves_examples_on_both_sides():
    examples = {"source": ["a", "b", "c"], "target": ["x", "y", "z"]}
    for size in (0, 3, -1):
        with pytest.raises(ValueError, match=f"={size}: expected 1 to 2 of the 3 examples"):
            hold_out(examples, size, documents=False)


def test_hold_out_takes_the_last_characters_of_documents():
    documents = ["ab", "c", "\u00e4\nfg", "h"]
    for size in range(1, 8):
        train, held_out = hold_out({"text": documents}, size, documents=True)
        assert "".join(train["text"] + held_out["text"]) == "".join(documents)
        assert len("".join(held_out["text"])) == size
        # At most one document is in two parts, and no part is empty.
        assert len(train["text"]) + len(held_out["text"]) <= len(documents) + 1
        assert all(train["text"] + held_out["text"])
    whole = hold_out({"text": documents}, 5, documents=True)
    assert whole == ({"text": ["ab", "c"]}, {"text": documents[2:]})
    for size in (0, 8, -1):
        with pytest.raises(ValueError, match="expected 1 to 7 of the 8 characters in data.train"):
            hold_out({"text": documents}, size, documents=True)


def test_pieces_hold_all_rows_and_no_more_than_memory_should(monkeypatch):
    monkeypatch.setattr(examples_file, "_MOST", 6)
    monkeypatch.setattr(examples_file, "_MOST_CHARACTERS", 40)
    monkeypatch.setattr(examples_file, "_STRIDE", 2)
    rows = [("x" * (n % 13), str(n)) for n in range(99)]
    pieces = list(gathered(("a", "b"), iter(rows)))
    assert concatenate(pieces) == {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    for piece in pieces:
        assert len(piece["a"]) <= 6
        assert sum(map(len, [*piece["a"][:-2], *piece["b"][:-2]])) < 40
    assert any(len(piece["a"]) < 6 for piece in pieces[:-1])  # the characters were too many


def test_long_documents_are_pieces_of_their_own_and_do_not_move_those_of_others(monkeypatch):
    monkeypatch.setattr(examples_file, "_MOST_CHARACTERS", 40)
    monkeypatch.setattr(examples_file, "_STRIDE", 4)
    short = [("x" * 5,) for _ in range(16)]
    assert [len(piece["a"]) for piece in gathered("a", short)] == [8, 8]
    long = [("y" * 50,) for _ in range(3)]
    assert [len(piece["a"]) for piece in gathered("a", short + long)] == [8, 8, 1, 1, 1]
    assert [len(piece["a"]) for piece in gathered("a", short[:2] + long + short)] == [3, 1, 1, 8, 8]


def test_what_a_tokenizer_learns_from_is_spread_over_all(monkeypatch):
    monkeypatch.setattr(examples_file, "_STRIDE", 1)
    pieces = [
        {"text": [f"{n:03}" for n in range(start, start + 10)]} for start in range(0, 200, 10)
    ]
    assert sample(pieces, 600) == concatenate(pieces)
    numbers = [int(text) for text in sample(pieces, 100)["text"]]
    (stride,) = {b - a for a, b in zip(numbers, numbers[1:], strict=False)}
    assert stride == 8 and 50 <= 3 * len(numbers) <= 100
    assert sample(pieces, 1)["text"]
    words = [{"text": [[*text] for text in piece["text"]]} for piece in pieces]
    assert len(sample(words, 100)["text"]) == len(numbers)  # a list counts by its characters


def test_a_share_in_percent_of_a_hundred_examples_is_as_many():
    """Whatever 100 times the share is in binary, and however the examples come in pieces."""
    for percent in range(1, 101):
        pieces = [{"text": ["a"] * 30}, {"text": ["a"] * 70}]
        used = examples_file.share(pieces, percent / 100)
        assert sum(len(piece["text"]) for piece in used) == percent
