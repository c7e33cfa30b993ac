"""Tasks without tokens: columns of any shape and dtype go the whole way from files to batches."""

import dataclasses
import json

import numpy as np
import pytest

from tests.data.datasets import SPLITS, dataset, rows_of
from transformer_jax.data.prepare.recipe import Column, Limits, Recipe
from transformer_jax.data.prepare.summary import report
from transformer_jax.data.read.sources import NUMBERS

SIZES = {"train": 40, "validation": 5, "test": 7}


def vectors(split):
    """Sequences of one to five vectors, and for each sequence two numbers."""
    draw = np.random.default_rng(len(split))
    return [
        {"text": draw.normal(size=(1 + n % 5, 3)).tolist(), "label": [n / 4, len(split)]}
        for n in range(SIZES[split])
    ]


def encode(examples, tokenizer, labels, limits):
    """Vectors as float32 and, coarser, as bytes; the numbers that are asked for, once."""
    assert tokenizer is None and labels == ()
    features = [np.asarray(value[: limits.source]) for value in examples["features"]]
    too_long = [n for n, rows in enumerate(examples["features"]) if len(rows) > limits.source]
    return {
        "inputs": features,
        "coarse": [(128 + 16 * value).clip(0, 255).astype(np.uint8) for value in features],
        "places": [[[n, len(value)] for n in range(len(value))] for value in features],
        "values": [[value] for value in examples["values"]],
    }, too_long


COLUMNS = {
    "inputs": Column("source", shape=(3,), dtype="float32"),
    "coarse": Column("source", along="inputs", shape=(3,), dtype="uint8"),
    "places": Column("source", along="inputs", shape=(2,)),
    "values": Column("target", shape=(2,), dtype="bfloat16"),
}
RECIPE = Recipe(
    name="regression",
    reads=NUMBERS,
    columns=COLUMNS,
    encode=encode,
    prompt=encode,
    tokenized=False,
)


@pytest.fixture(autouse=True)
def files(folder):
    for split in SPLITS:
        lines = "\n".join(map(json.dumps, vectors(split)))
        (folder / "numbers" / split).write_text(lines)


def test_batches_hold_the_numbers_of_every_example(folder):
    test = vectors("test")
    examples = {"features": [row["text"] for row in test], "values": [row["label"] for row in test]}
    encoded, _ = encode(examples, None, (), Limits(8, 8, "truncate"))
    batches = dataset(folder, RECIPE).split("test").batches
    for name in ("inputs", "coarse", "places"):
        rows = rows_of(batches, name)
        for number, values in enumerate(encoded[name]):
            np.testing.assert_array_equal(rows[number], np.asarray(values, COLUMNS[name].dtype))


def test_no_tokenizer_is_made_and_nobody_asks_for_one(folder, caplog):
    data = dataset(folder, RECIPE, longest={"source": 4, "target": 8})
    summaries = data.summaries()
    assert {split: summary.examples for split, summary in summaries.items()} == SIZES
    assert summaries["train"].tokens is None and summaries["train"].lengths["target"] == (1, 1, 1)
    assert "token" not in report(summaries) and "<unk>" not in report(summaries)
    assert "train: 8 of 40 examples" in caplog.text and "max_source_length" in caplog.text
    data.warn_of_unknown_words(["1 2"])
    assert (data.labels, data.unigram_entropy, data.vocab_size) == ((), None, 0)
    assert data.tokenizer_fingerprint == "none"
    data.check()
    assert data.in_train("test").sum() == 0 < data.share_of_tokens(9)
    with pytest.raises(ValueError, match="'regression' reads numbers, and has no tokenizer"):
        _ = data.tokenizer
    assert {path.name for path in (folder / "cache").iterdir()} == {"sets"}


def test_prepared_sets_are_found_again_unless_a_column_has_another_form(folder):
    fingerprint = dataset(folder, RECIPE).train_streams().fingerprint
    assert dataset(folder, RECIPE).train_streams().fingerprint == fingerprint
    halves = COLUMNS | {"inputs": Column("source", shape=(3,), dtype="float16")}
    other = dataset(folder, dataclasses.replace(RECIPE, columns=halves))
    assert other.train_streams().fingerprint != fingerprint
    assert next(other.train_streams())["inputs"].dtype == np.float16


def test_numbers_of_another_shape_are_refused_by_the_column_and_the_value(folder):
    rows = [*vectors("train"), {"text": [[7, 8]], "label": [0, 0]}]
    (folder / "numbers" / "train").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=r"'inputs' .*: expected arrays of shape \(3,\), .*7"):
        dataset(folder, RECIPE).train_streams()
