"""A data set as a run uses it: splits, tokenizer, labels, prompts, for every task."""

import collections
import dataclasses
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.datasets import (
    LABELS,
    PROMPTS,
    SENTENCES,
    SPLITS,
    TOKENIZED,
    dataset,
    make_settings,
    rows_of,
)
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepare.summary import likely_mistakes
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import concatenate
from transformer_jax.data.settings import Part
from transformer_jax.tasks import TASKS


def _train(data):
    """The examples of the training split."""
    return concatenate(data.settings.pieces("train"))


@pytest.mark.parametrize("task", TOKENIZED)
def test_a_split_has_every_example_once_by_its_number(folder, task):
    data, recipe = dataset(folder, task), TASKS[task].recipe
    names = [name for name, column in recipe.columns.items() if column.along is None]
    column = {"inputs": recipe.reads[0], "targets": recipe.reads[-1]}[names[-1]]
    for name in ("validation", "test"):
        split = data.split(name)
        values = split.examples[column]
        texts = [value if isinstance(value, str) else " ".join(value) for value in values]
        upper = [text.upper() for text in SENTENCES[name]]
        assert texts == (upper if column == "target" else SENTENCES[name])
        assert set(split.batches[0][0]) == set(recipe.batch_columns())
        rows = rows_of(split.batches, names[-1])
        assert sorted(rows) == list(range(len(texts)))
        if recipe.draw is recipe.corrupt is None:  # else words are hidden
            # Of the words, training lacks the first, which is the name of the split.
            expected = [f"<unk> {text.partition(' ')[2]}" for text in texts]
            assert [data.tokenizer.decode(rows[n]) for n in sorted(rows)] == expected


@pytest.mark.parametrize("task", ["translation", "classification", "tagging"])
def test_examples_that_are_held_out_are_the_last_of_train(folder, task):
    whole = _train(dataset(folder, task))
    data = dataset(folder, task, splits=SPLITS | {"validation": ()}, validation_size=6)
    held_out = data.split("validation").examples
    train = _train(data)
    assert {key: train[key] + list(held_out[key]) for key in whole} == whole
    assert {len(values) for values in held_out.values()} == {6}


@pytest.mark.parametrize("task", ["translation", "tagging"])
def test_a_share_of_train_is_spread_over_it_and_nothing_else_is_left_out(folder, task):
    whole = _train(dataset(folder, task))
    data = dataset(folder, task, train_share=0.25)
    train = _train(data)
    assert train == {key: values[3::4] for key, values in whole.items()}
    assert data.summaries()["train"].examples == len(next(iter(train.values())))
    assert len(data.split("test").examples[TASKS[task].recipe.reads[0]]) == len(SENTENCES["test"])
    with pytest.raises(ValueError, match=r"data.train_share=0.001 of \d+ examples"):
        _ = dataset(folder, task, train_share=0.001).tokenizer


def test_characters_held_out_of_a_language_models_text_are_never_trained_on(folder):
    """Also where the cut falls into a document, and for the tokenizer."""
    whole = "".join(SENTENCES["train"])
    size = len(SENTENCES["train"][-1]) + 4
    data = dataset(
        folder,
        "causal_lm",
        splits=SPLITS | {"validation": ()},
        validation_size=size,
        tokenizer_kind="bytes",
        longest={"source": 8, "target": 16},
    )
    held_out = data.split("validation").examples["text"]
    assert "".join(held_out) == whole[-size:] and len(held_out) == 2
    trained = set(_decoded(data, 20))
    pieces = {SENTENCES["train"][-2][:-4], *SENTENCES["train"][:-2]}
    assert trained == {part for text in pieces for part in (text[:16], text[16:]) if part}


def test_a_split_that_the_config_leaves_out_is_not_there(folder):
    with pytest.raises(ValueError, match="data.test is empty"):
        dataset(folder, splits=SPLITS | {"test": ()}).split("test")


def test_long_examples_are_left_out_of_training_and_counted_in_a_warning(folder, caplog):
    splits = SPLITS | {"validation": ("train",)}
    data = dataset(folder, splits=splits, longest={"source": 6, "target": 6})
    long = sum(len(text.split()) > 5 for text in SENTENCES["train"])
    assert len(rows_of(data.split("validation").batches)) == len(SENTENCES["train"])
    assert f"validation: {long} of 13 examples" in caplog.text and "cut off" in caplog.text
    batches = itertools.islice(data.train_streams(), 10)
    assert max(batch["inputs_positions"].max() for batch in batches) == 5
    assert f"train: {long} of 13 examples" in caplog.text and "left out" in caplog.text


@pytest.mark.parametrize("task", TOKENIZED)
def test_every_split_is_counted_whether_it_has_been_read_or_not(folder, task):
    """And once: what training has read is not read again."""
    summaries = dataset(folder, task).summaries()
    assert {split: one.examples for split, one in summaries.items()} == {
        split: len(sentences) for split, sentences in SENTENCES.items()
    }
    if TASKS[task].recipe.labels:
        assert summaries["test"].labels.keys() == set(LABELS["test"])
        assert sum("not in train" in line for line in likely_mistakes(summaries)) == 2
    splits = SPLITS | {"validation": (), "test": ()}
    held_out = dataset(folder, task, splits=splits, validation_size=6)
    held_out.train_streams()
    held_out.split("validation")
    for path in folder.glob("*/train*"):
        path.unlink()
    assert held_out.summaries().keys() == {"train", "validation"}


def test_training_data_of_empty_lines_is_refused(folder):
    (folder / "pairs" / "train.de").write_text("\n" * 13)
    data = dataset(folder)
    with pytest.raises(ValueError, match="data.train: all 13 texts of 'target' are empty"):
        data.train_streams()


@pytest.mark.parametrize("task", TOKENIZED)
def test_prompts_come_by_their_numbers_and_a_warning_counts_those_that_are_too_long(
    folder, caplog, task
):
    data = dataset(folder, task)
    longest = 7 if task in ("causal_lm", "translation") else 6  # that training would take
    data.prompts([" ".join("a" * longest)])
    assert not caplog.text
    rows = rows_of(data.prompts(PROMPTS))
    limits = data.settings.limits("truncate")
    expected, _ = TASKS[task].recipe.prompt(PROMPTS, data.tokenizer, data.labels, limits)
    assert [rows[n] for n in range(len(PROMPTS))] == expected["inputs"]
    assert max(map(len, rows.values())) == 8
    assert "1 lines are too long" in caplog.text


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm", "span_corruption"])
def test_a_text_by_hand_is_one_row_however_long_it_is(folder, task, caplog):
    data = dataset(folder, task)
    both, alone = data.batch([" ".join("a" * 99), "b"]), data.batch(["b"])
    for name, values in alone.items():
        assert len(both[name]) == 2
        if name.endswith("_segment_ids"):
            assert both[name][1].sum() == values[0].sum()
    assert "1 lines are too long" in caplog.text


@pytest.mark.parametrize("task", TOKENIZED)
def test_a_prefix_stands_before_prompts_where_it_does_before_what_is_trained_on(folder, task):
    plain = dataset(folder, task)
    source = dataclasses.replace(plain.settings.source, prefix="c c ")
    prefixed = dataset(folder, task, source=source)
    lengths = [len(rows_of(data.prompts(["a"]))[0]) for data in (plain, prefixed)]
    assert lengths[1] - lengths[0] == (0 if _train(prefixed) == _train(plain) else 2)


def counted_entropy(data, batches):
    """Nats of a target's distribution, from the frequencies in so many training batches."""
    batches = itertools.islice(data.train_streams(), batches)
    targets = np.concatenate([batch["targets"].ravel() for batch in batches])
    _, counts = np.unique(targets[targets > 0], return_counts=True)
    shares = counts / counts.sum()
    return -np.sum(shares * np.log(shares))


@pytest.mark.parametrize(
    ("task", "most", "examples"),
    # Sentences that are left out of training have no part in it.
    [("translation", 8, 13), ("translation", 4, 6), ("causal_lm", 8, 13), ("masked_lm", 8, 13)],
)
def test_unigram_entropy_is_that_of_an_epoch_of_batches(folder, task, most, examples):
    """Counted where the loss looks, with a mask that hides all that it may."""
    changes = {"batch_size": examples, "longest": {"source": 8, "target": most}}
    data = dataset(folder, task, packing=False, streams=1, mask_rate=1.0, **changes)
    assert data.unigram_entropy == pytest.approx(counted_entropy(data, 1))
    assert dataset(folder, "tagging").unigram_entropy is None


def test_unigram_entropy_of_hidden_spans_is_that_of_the_targets(folder):
    """Of which sentinels are a part, and the text that is shown is none."""
    longest = {"source": 16, "target": 16}
    data = dataset(folder, "span_corruption", streams=1, packing=False, longest=longest)
    assert data.unigram_entropy == pytest.approx(counted_entropy(data, 100), abs=0.02)


def test_what_is_prepared_is_found_without_reading(folder, monkeypatch):
    """By another process as well: all that it knows is in the cache."""
    for task in TOKENIZED:
        first = dataset(folder, task)
        batch, scored = next(first.train_streams()), first.split("test")
        summaries = first.summaries()
        with monkeypatch.context() as patch:
            patch.delattr(sources, "read")
            patch.setattr(prepare, "_encoded_piece", None)
            data = dataset(folder, task)
            np.testing.assert_equal(next(data.train_streams()), batch)
            assert data.summaries() == summaries
            assert data.split("test").examples == scored.examples


@pytest.mark.parametrize("task", ["causal_lm", "classification"])
def test_other_content_in_files_of_the_same_names_sizes_and_times_is_prepared_anew(folder, task):
    """In another folder, and in place: token arrays, tokenizer and labels are of what is there."""
    source = make_settings(folder, task).source
    first, other = Path(source.dir), folder / "other"
    other.mkdir()
    for path in first.iterdir():
        (other / path.name).write_text(path.read_text().translate(str.maketrans("aemoy", "yomea")))
        for same in (path, other / path.name):
            os.utime(same, ns=(10**18, 10**18))

    def everything_of(folder):
        there = dataclasses.replace(source, dir=str(folder))
        data = dataset(first.parent, task, source=there)
        batch = {name: rows.tolist() for name, rows in next(data.train_streams()).items()}
        return data.tokenizer.fingerprint, data.labels, data.train_streams().fingerprint, batch

    before, elsewhere = everything_of(first), everything_of(other)
    assert all(ours != theirs for ours, theirs in zip(before, elsewhere, strict=True) if ours)
    first.rename(folder / "old")
    other.rename(first)
    assert everything_of(first) == elsewhere
    assert everything_of(folder / "old") == before  # what follows from the same content is the same


def test_content_that_a_set_is_not_found_by_is_found_by_a_check(folder, monkeypatch):
    monkeypatch.setattr(sources, "_BLOCK", 1)
    data, path = dataset(folder, "causal_lm"), folder / "texts" / "test"
    data.check()
    status = path.stat()
    size, text = status.st_size, path.read_text()
    offsets = {(size - 1) * number // 15 for number in range(16)}
    unseen = next(n for n, letter in enumerate(text) if letter == "a" and n not in offsets)
    path.write_text(f"{text[:unseen]}z{text[unseen + 1 :]}")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ValueError, match="data.test: the files have another content than .*delete"):
        dataset(folder, "causal_lm").check()


@pytest.mark.parametrize(
    ("kind", "text"), [("bpe", "a\u2581b"), ("words", "a  b"), ("unigram", "a\u2581b")]
)
def test_targets_that_do_not_come_back_from_their_tokens_are_told_with_their_share(
    folder, caplog, kind, text
):
    for name in ("train", "test"):
        path = folder / "pairs" / f"{name}.de"
        _, _, *others = path.read_text().splitlines()
        path.write_text("\n".join([" A ", text, *others]))
    sizes = {"tokenizer_kind": kind, "tokenizer_vocab_size": 40}
    sizes |= {"longest": {"source": 64, "target": 64}, "packing": False}
    dataset(folder, **sizes).summaries()
    (message,) = [message for message in caplog.messages if "come back" in message]
    # Of the targets of known words
    assert message.startswith("test: 50.0% of the targets") and repr(text) in message
    caplog.clear()
    dataset(folder, "causal_lm", **sizes).summaries()
    assert "come back" not in caplog.text  # what is scored is no text


def test_a_tokenizer_is_at_hand_where_no_text_has_to_be_read_for_it(folder):
    data = dataset(folder)
    assert not data.has_tokenizer and dataset(folder, tokenizer_kind="bytes").has_tokenizer
    data.tokenizer.save(folder / "tokenizer.json")
    assert dataset(folder).has_tokenizer
    elsewhere = folder / "nowhere"
    assert not dataset(elsewhere).has_tokenizer
    assert dataset(elsewhere, tokenizer_file=folder / "tokenizer.json").has_tokenizer


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


def test_places_with_a_token_are_counted(folder):
    data = dataset(folder, "causal_lm", packing=False)
    lengths = [len(text.split()) + 1 for text in SENTENCES["train"]]
    assert 0 < data.share_of_tokens(4 * 13) == pytest.approx(np.mean(lengths) / 8, rel=0.02)


def test_examples_of_a_part_are_shared_with_the_training_split_of_any_part(folder):
    """And a part without the split to score counts for its training examples alone."""
    lines = {
        "one": ["a", "a b"],
        "two": ["c", "c d"],
        "of_one": ["a c", "c", "a b"],
        "of_two": ["a", "d"],
    }
    for name, texts in lines.items():
        (folder / "texts" / name).write_text("\n".join(texts))
    source = make_settings(folder, "causal_lm").source

    def part(name, train, test):
        return Part(name, source, {"train": train, "validation": (), "test": test}, 1.0, ())

    both = part("a", ("one",), ("of_one",)), part("b", ("two",), ("of_two",))
    split = dataset(folder, "causal_lm", parts=both).split("test")
    assert split.parts == {"a": range(3), "b": range(3, 5)}
    assert split.in_train().tolist() == [False, True, True, True, False]
    last = part("a", ("one",), ()), part("b", (), ("of_one", "of_two"))
    split = dataset(folder, "causal_lm", parts=last).split("test")
    assert split.parts == {"b": range(5)}
    assert split.in_train().tolist() == [False, False, True, True, False]


def test_what_training_leaves_out_as_too_long_is_not_in_it(folder):
    for name in ("tr", "te"):
        for side in ("en", "de"):
            text = "".join(f"{line}\n" for line in ("a b", " ".join("a" * 30)))
            (folder / "pairs" / f"{name}.{side}").write_text(text)
    splits = {"train": ("tr",), "validation": ("te",), "test": ("te",)}
    assert dataset(folder, "translation", splits=splits).in_train("test").tolist() == [True, False]


def _decoded(data, batches):
    """How often each text is among so many training batches."""
    counts = collections.Counter()
    for batch in itertools.islice(data.train_streams(), batches):
        for row, segments in zip(batch["targets"], batch["targets_segment_ids"], strict=True):
            for segment in range(1, segments.max() + 1):
                counts[data.tokenizer.decode(row[segments == segment])] += 1
    return counts


def test_sets_of_several_formats_are_mixed_by_weight(folder):
    (folder / "texts" / "a.json").write_text('{"text": "a a"}\n' * 5)
    (folder / "texts" / "b.txt").write_text("b b b\n" * 7)
    source = make_settings(folder, "causal_lm").source
    parts = [
        Part("", dataclasses.replace(source, source=name), {"train": (file,)}, weight, ())
        for name, file, weight in (("json", "a.json", 3.0), ("text", "b.*", 1))
    ]
    data = dataset(folder, "causal_lm", mixture=tuple(parts))
    counts = _decoded(data, 200)
    assert set(counts) == {"a a", "b b b"}
    total = counts.total()
    assert abs(counts["b b b"] / total - 1 / 4) < 4 * math.sqrt(1 / 4 / total)
    summary = data.summaries()["train"]
    assert summary.examples == 5 + 7 and summary.lengths["target"][2] == 4
    assert data.in_train("test").sum() == 0
    assert data.unigram_entropy == pytest.approx(counted_entropy(data, 200), abs=0.01)
    data.check()
    (folder / "texts" / "b.txt").unlink()
    with pytest.raises(FileNotFoundError, match="no file matches"):
        data.settings.find_files()
