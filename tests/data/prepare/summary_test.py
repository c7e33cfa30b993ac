"""The counts of a split are right, shown as a table, and likely mistakes in it are told."""

import dataclasses

import pytest

from tests.data.prepared_sets import make_arrays
from transformer_jax.data.prepare.recipe import Limits, TooLong
from transformer_jax.data.prepare.summary import (
    Summary,
    likely_mistakes,
    report,
    summarise,
    too_long,
)
from transformer_jax.data.prepare.tokenizer import train_tokenizer
from transformer_jax.tasks import TASKS

PLAIN = Summary(
    examples=100,
    empty={"text": 0},
    characters=4000,
    tokens=1000,
    too_long=0,
    pieces=None,
    lengths={"source": (5, 8, 1200)},
    unknown=0.01,
    sizes={},
    labels={"no": 60, "yes": 40},
    content="",
)


def changed(**changes) -> Summary:
    return dataclasses.replace(PLAIN, **changes)


def summary_of(task, examples, most=9, too_long: TooLong = "drop") -> Summary:
    """The summary of examples, by a tokenizer that knows the words a, b and c."""
    recipe = TASKS[task].recipe
    tokenizer = train_tokenizer("words", ["a b c"], 99, recipe.extra_tokens)
    limits = Limits(most, most, too_long)
    return summarise(
        [make_arrays([examples], tokenizer, recipe, ("no", "yes"), limits)],
        recipe,
        tokenizer.special,
    )


def test_pairs_are_counted_by_side():
    sources = ["a", "", "a a a", " ", "a b c a", "a a a a a a a a a"]
    targets = ["b", "b", "", "c x", "c", "c"]
    summary = summary_of("translation", {"source": sources, "target": targets, "else": [1] * 6})
    assert dataclasses.replace(summary, content="") == changed(
        examples=6,
        empty={"source": 2, "target": 1},
        characters=38,
        tokens=23,
        too_long=1,
        lengths={"source": (2, 5, 5), "target": (2, 3, 3)},  # of the five that are left, with eos
        unknown=1 / 13,  # eos is no text
        labels={},
        long_characters=18,
    )


@pytest.mark.parametrize("task", ["translation", "classification"])
@pytest.mark.parametrize("limit", ["drop", "truncate"])
def test_characters_a_token_are_of_the_examples_that_fit(task, limit):
    texts = ["a b", "a " * 30, "abc", "b " * 40]
    columns = {"source": texts, "target": texts, "text": texts, "label": ["yes"] * 4}
    long = [summary_of(task, columns, 5, limit), summary_of(task, columns, 99, limit)]
    short = summary_of(task, {name: values[::2] for name, values in columns.items()}, 99)
    ratios = [
        next(line for line in report({"train": one}).splitlines() if "characters a" in line)
        for one in (*long, short)
    ]
    assert ratios[0].split() == ratios[2].split() != ratios[1].split()
    unknown = dataclasses.replace(long[0], long_characters=0, long_tokens=0)  # prepared long ago
    assert report({"train": unknown}).count(" -\n") == 1


def test_labels_of_texts_and_of_words_are_counted():
    labelled = {"text": ["a", "b x", ""], "label": ["yes", "no", "yes"]}
    summary = summary_of("classification", labelled)
    assert (summary.labels, summary.empty) == ({"yes": 2, "no": 1}, {"text": 1})
    assert summary.unknown == 1 / 3
    tagged = {"words": [["a", "b"], ["x"]], "tags": [["yes", "no"], ["no"]]}
    summary = summary_of("tagging", tagged)
    assert (summary.labels, summary.empty) == ({"no": 2, "yes": 1}, {"words": 0})
    assert summary.lengths == {"source": (3, 4, 4)}
    many = dataclasses.replace(summary, labels={str(n): 1 + n for n in range(30)})
    lines = [line.split() for line in report({"train": many}).split("Warning")[0].splitlines()]
    lines = [words for words in lines if {"label", "labels"} & {*words}]
    *rows, (others, *_, examples) = lines
    assert len(rows) + int(others) == 30
    assert sum(int(count) for *_, count in rows) + int(examples) == sum(range(31))


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_documents_are_counted_with_their_pieces(task):
    summary = summary_of(task, {"text": ["a b c a b c a", "a"]}, most=4)
    assert summary.examples == 2 and summary.pieces and summary.pieces > 2
    ((*_, longest),) = summary.lengths.values()
    assert longest == 4


def test_data_without_a_mistake_is_not_warned_of():
    summaries = {"train": changed(tokens=1), "test": changed(labels={"no": 1}, too_long=25)}
    assert likely_mistakes(summaries) == [] and too_long(summaries) == {"test": 0.25}


@pytest.mark.parametrize(
    ("split", "changes", "parts"),
    [
        ("test", {"empty": {"text": 51}}, ["test: 51 of 100 texts of 'text' are empty"]),
        ("test", {"tokens": 999}, ["test: scores of 999 tokens", "data.validation_size"]),
        ("test", {"unknown": 0.93}, ["test: 93%", "<unk>", "data.tokenizer.vocab_size"]),
        ("train", {"labels": {"no": 9, "No": 3, "yes": 5}}, ["white space or case", "'No' and"]),
        ("train", {"labels": {"no": 9, "no\u200b": 3}}, ["invisible", r"'no' and 'no\u200b'"]),
        ("train", {"labels": {"n\xf6": 9, "no\u0308": 3}}, ["accents", r"'no\u0308' and 'n\xf6'"]),
        ("train", {"labels": {"no": 9, "\uff4e\uff4f": 3}}, ["alike", r"'no' and '\uff4e\uff4f'"]),
        ("train", {"labels": {"no": 9, "no\ufe0f": 3}}, ["invisible", r"'no' and 'no\ufe0f'"]),
        ("train", {"labels": {"NO": 9, "N\u041e": 3}}, ["like others", r"'NO' and 'N\u041e'"]),
        ("train", {"labels": {"no": 9, "label": 1}}, ["train: 1 of 2 labels", "once: 'label'"]),
        ("test", {"labels": {"no": 9, "never": 2}}, ["test: 1 of 2 labels", "train: 'never'"]),
    ],
)
def test_a_likely_mistake_is_one_line(split, changes, parts):
    summaries = {"train": PLAIN, "test": changed(labels={"no": 1})}
    lines = likely_mistakes(summaries | {split: changed(**changes)})
    assert sum(all(part in line for part in parts) for line in lines) == 1
    report_lines = report(summaries | {split: changed(**changes)}).splitlines()
    assert [line for line in report_lines if line.startswith("Warning: ")] == [
        f"Warning: {line}" for line in lines
    ]
