"""The tokenizer and the labels of a data set, for every task."""

import json
from typing import Any

import pytest

from tests.data.datasets import LABELS, SPLITS, dataset, rows_of


def test_a_tokenizer_is_of_its_texts_and_settings(folder):
    bpe: dict[str, Any] = dict(tokenizer_kind="bpe", tokenizer_vocab_size=30)
    changes: list[tuple[str, dict[str, Any]]] = [
        ("translation", bpe),
        ("translation", bpe | {"tokenizer_vocab_size": 28}),
        ("translation", bpe | {"splits": SPLITS | {"train": ("test",)}}),
        ("causal_lm", bpe),
        ("masked_lm", bpe),
    ]
    trained = [dataset(folder, task, **change).tokenizer for task, change in changes]
    assert len({tokenizer.fingerprint for tokenizer in trained}) == len(changes)


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_labels_are_those_of_all_splits_in_alphabetical_order(folder, task):
    assert dataset(folder, task).labels == ("maybe", "never", "no", "yes")
    splits = SPLITS | {"test": ()}
    assert dataset(folder, task, splits=splits).labels == ("maybe", "no", "yes")


def test_labels_of_a_work_directory_take_precedence_over_those_of_the_data(folder):
    labels = ["yes", "no", "never", "maybe"]
    (folder / "labels.json").write_text(json.dumps(labels))
    data = dataset(folder, "classification", labels_file=folder / "labels.json")
    assert list(data.labels) == labels
    ids = {number: row[0] for number, row in rows_of(data.split("test").batches, "labels").items()}
    assert ids == {n: 1 + labels.index(LABELS["test"][n % 2]) for n in range(4)}
    # One that was not there when the model was trained.
    (folder / "labels.json").write_text(json.dumps(labels[:2]))
    data = dataset(folder, "classification", labels_file=folder / "labels.json")
    with pytest.raises(ValueError, match="'never'.*yes, no"):
        data.split("test")


def test_a_single_label_leaves_nothing_to_learn(folder):
    (folder / "labelled" / "one").write_text("yes a b\nyes b a\n")
    splits = dict.fromkeys(SPLITS, ("one",))
    with pytest.raises(ValueError, match="all labels of the data are 'yes'"):
        _ = dataset(folder, "classification", splits=splits).labels
