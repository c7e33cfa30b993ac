import pytest

from transformer_jax.data.examples import concatenate, hold_out


def test_parts_are_concatenated_column_by_column():
    parts = [{"words": [["a"]], "tags": [["X"]]}, {"words": [["b"], []], "tags": [["Y"], []]}]
    assert concatenate(parts) == {"words": [["a"], ["b"], []], "tags": [["X"], ["Y"], []]}


def test_hold_out_takes_the_last_examples():
    examples = {"source": ["a", "b", "c"], "target": ["x", "y", "z"]}
    train, validation = hold_out(examples, 1, documents=False)
    assert train == {"source": ["a", "b"], "target": ["x", "y"]}
    assert validation == {"source": ["c"], "target": ["z"]}
    for size in (0, 3, -1):
        with pytest.raises(ValueError, match=f"={size}: expected 1 to 2 of the 3 examples"):
            hold_out(examples, size, documents=False)
    labelled = {"text": ["abc", "def"], "label": ["x", "y"]}
    train, validation = hold_out(labelled, 1, documents=False)
    assert train == {"text": ["abc"], "label": ["x"]}
    assert validation == {"text": ["def"], "label": ["y"]}


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
