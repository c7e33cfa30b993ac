"""Prepared sets hold what recipes make of examples, however and how often they are begun."""

import dataclasses
import os
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.data.prepared_sets import make_arrays
from transformer_jax.data.prepare import arrays, prepare
from transformer_jax.data.prepare.prepare import Plan, prepared
from transformer_jax.data.prepare.recipe import Column, Limits
from transformer_jax.data.prepare.tokenizer import EOS_ID, train_tokenizer
from transformer_jax.data.prepare.worker import Worker
from transformer_jax.process import machine, progress
from transformer_jax.tasks import TASKS

BYTES = train_tokenizer("bytes", [], 0)
EXAMPLES = {
    "source": ["ab", "", "abcde", "a", "abcd"],
    "target": ["x", "y", "z", "0123456", "wxyz"],
}
RECIPE = TASKS["translation"].recipe
LIMITS = Limits(5, 6, "drop")
PLAN = Plan(encoder=BYTES, recipe=RECIPE, labels=(), limits=LIMITS, keeps_texts=True)
# Sixty examples in pieces of two, so that there is something to interrupt.
MANY = {"source": [f"{n:02}" for n in range(60)], "target": ["x" * (n % 7) for n in range(60)]}


def cut(examples):
    """Pieces of two examples."""
    starts = range(0, len(examples["source"]), 2)
    return [{name: values[n : n + 2] for name, values in examples.items()} for n in starts]


def make(folder, pieces, plan=PLAN, **changes):
    settings: dict[str, Any] = dict(workers=1, what="Making", total=None) | changes
    return prepared(plan, lambda: iter(pieces), folder, **settings)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_set_holds_what_the_recipe_makes_of_each_example_and_counts_the_too_long(tmp_path):
    pairs = make(tmp_path / "set", cut(EXAMPLES))
    examples = [0, 1, 4]  # of the sources the last is just short enough, the third just too long
    assert (len(pairs), pairs.counts.examples, pairs.counts.too_long) == (len(examples), 5, 2)
    assert list(pairs.columns) == list(RECIPE.columns)  # their order decides that of batches
    for number, example in enumerate(examples):
        for side, column in (("inputs", "source"), ("targets", "target")):
            ids = BYTES.encode([EXAMPLES[column][example]])[0]
            assert pairs[number][side].tolist() == [*ids, EOS_ID]
            assert pairs[number][side].dtype == np.int32
    for name, tokens in pairs.columns.items():
        assert pairs.ids[name].tolist() == np.bincount(tokens[:]).tolist()
        assert pairs.lengths[name].tolist() == np.bincount(np.diff(pairs.offsets[name][:])).tolist()
    assert pairs.texts() == EXAMPLES


def test_more_ids_than_two_bytes_hold(tmp_path):
    def encode(examples, tokenizer, labels, limits):
        rows = [[int(text)] for text in examples["text"]]
        return {"targets": rows, "labels": rows}, ()

    columns = {"targets": Column("target"), "labels": Column("target", along="targets")}
    recipe = dataclasses.replace(RECIPE, reads=("text",), columns=columns, encode=encode)
    labels = tuple(map(str, range(2**16)))
    plan = dataclasses.replace(PLAN, recipe=recipe, labels=labels)
    pairs = make(tmp_path / "set", [{"text": ["65536", "0"]}], plan)
    assert pairs[0]["labels"].tolist() == [65536] == pairs[0]["targets"].tolist()


@pytest.mark.parametrize("examples", [[EXAMPLES], []])
def test_no_example_left(tmp_path, examples):
    plan = dataclasses.replace(PLAN, limits=Limits(0, 6, "drop"))
    with pytest.raises(ValueError, match="no example is left of .*data.max_source_length=0"):
        make(tmp_path / "set", examples, plan)
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_the_fingerprint_covers_what_made_a_set():
    def fingerprint(examples=EXAMPLES, tokenizer=BYTES, recipe=RECIPE, labels=(), limits=LIMITS):
        return make_arrays([examples], tokenizer, recipe, labels, limits).fingerprint

    fingerprints = [
        fingerprint(),
        fingerprint({"source": EXAMPLES["target"], "target": EXAMPLES["source"]}),
        fingerprint(tokenizer=train_tokenizer("words", ["ab"], 9)),
        fingerprint(limits=Limits(5, 6, "truncate")),
        fingerprint(limits=Limits(6, 6, "drop")),
        fingerprint(limits=Limits(5, 7, "drop")),
        fingerprint(recipe=dataclasses.replace(RECIPE, name="others")),
        fingerprint(recipe=dataclasses.replace(RECIPE, version=1)),
        fingerprint(recipe=dataclasses.replace(RECIPE, version=2)),
        fingerprint(labels=("bad", "good")),
        fingerprint(labels=("good", "bad")),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    beside = EXAMPLES | {"number": [1, 2, 3, 4, 5]}  # a column that the recipe does not read
    assert fingerprint(beside) == fingerprints[0]


class Killed(BaseException):
    """What a signal does to a preparation."""


def kill(folder, last):
    """Begins a set, is killed after so many pieces, and returns the unfinished folder."""

    def pieces():
        yield from cut(MANY)[:last]
        raise Killed

    with pytest.raises(Killed):
        make(folder, pieces())
    return folder.with_name(f"{folder.name}.unfinished")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a set that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "set"
    make(folder, cut(MANY))
    return folder


@pytest.mark.parametrize("after", [0, 1, 7, 29])
def test_an_interrupted_preparation_goes_on_where_it_stopped(tmp_path, monkeypatch, whole, after):
    unfinished = kill(tmp_path / "set", after)
    # The last piece was written, and the journal only begun to say so.
    with (unfinished / "journal").open("a") as journal:
        journal.write('{"counts": ')
    for name in ("inputs", "targets_lengths"):
        with (unfinished / name).open("ab") as file:
            file.write(b"half of it")
    pieces, encode = [], prepare._encoded_piece
    monkeypatch.setattr(prepare, "_encoded_piece", lambda *args: pieces.append(1) or encode(*args))
    make(tmp_path / "set", cut(MANY))
    assert len(pieces) == 30 - after  # no piece twice
    assert contents(tmp_path / "set") == contents(whole)
    assert not unfinished.exists()


@pytest.mark.parametrize(
    "others",
    [MANY | {"source": ["??", *MANY["source"][1:]]}, {key: MANY[key][:4] for key in MANY}],
)
def test_other_examples_than_before_the_interruption_are_refused_and_then_taken(tmp_path, others):
    kill(tmp_path / "set", 9)
    with pytest.raises(ValueError, match="piece [02] of the examples is another"):
        make(tmp_path / "set", cut(others))
    assert make(tmp_path / "set", cut(others)).counts.examples == len(others["source"])


def test_what_the_disk_has_lost_is_made_again(tmp_path, whole):
    os.truncate(kill(tmp_path / "set", 9) / "inputs", 3)
    make(tmp_path / "set", cut(MANY))
    assert contents(tmp_path / "set") == contents(whole)


def test_a_file_that_was_cut_off_ends_in_a_message(tmp_path):
    pairs = make(tmp_path / "set", cut(MANY))
    os.truncate(tmp_path / "set" / "inputs", 10)
    with pytest.raises(OSError, match="inputs was cut off after it was prepared"):
        _ = pairs[40]


def test_chunks_of_counting_change_nothing(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(arrays, "CHUNK", 7)
    make(tmp_path / "set", cut(MANY))
    assert contents(tmp_path / "set") == contents(whole)


@pytest.mark.long
def test_processes_and_their_number_change_nothing(tmp_path, monkeypatch, whole):
    started = []
    monkeypatch.setattr(prepare, "Worker", lambda work: started.append(1) or Worker(work))
    monkeypatch.setattr(machine, "cores", lambda: 8)
    make(tmp_path / "small", cut(MANY), workers=3)
    monkeypatch.setattr(prepare, "_ALONE", 1)
    make(tmp_path / "one", cut(MANY), workers=1)
    assert not started
    make(tmp_path / "three", cut(MANY), workers=3)
    assert len(started) == 3
    assert contents(tmp_path / "three") == contents(whole)
    bad = MANY | {"source": [*MANY["source"][:-1], None]}
    with pytest.raises(AttributeError):
        make(tmp_path / "bad", cut(bad), workers=2)


def test_what_takes_long_is_shown_in_megabytes(monkeypatch):
    bar = mock.Mock()
    monkeypatch.setattr(progress, "Bar", bar)
    with prepare._progress("Making", total=70_900_000) as show:
        for count in (999_999, 1, 5_000_000, 100_000_000):  # more than was thought
            show(count)
    assert bar.mock_calls == [
        mock.call("Making", total=70, unit="MB"),
        *(mock.call().update(done) for done in (0, 1, 6, 70)),
        mock.call().close(),
    ]
