"""The embedded corpus as a source: parts of its splits, and columns."""

import itertools

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.data.toy import source_settings
from transformer_jax.data.corpora import grammar
from transformer_jax.data.read import embedded
from transformer_jax.data.read.examples import Examples, concatenate
from transformer_jax.data.read.sources import LABELLED, PAIRS, TAGGED, TEXTS


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """(columns, splits, settings) -> the examples."""
    cache = tmp_path_factory.mktemp("embedded")

    def load(columns, *splits, text="source", label="", **changes) -> Examples:
        features = dict(text_feature=text, label_feature=label)
        settings = source_settings("embedded", cache, **features, **changes)
        return concatenate(embedded.read(settings, splits, columns))

    return load


def _bounds():
    """Slices with every kind of bound, of every sign."""
    bounds = ["", "0", "7", "-7", "1_000", "0%", "10%", "12.5%", "-33.3%", "99.95%", "100%"]
    for start, stop in itertools.product(bounds, bounds):
        if (start or stop) and len({bound[-1:] == "%" for bound in (start, stop) if bound}) == 1:
            yield f"[{start}:{stop}]"


def test_split_expressions_name_the_examples_that_tfds_reads():
    draw = np.random.default_rng(0)
    slices = ["", *_bounds(), *(f"[{share:.2f}%:]" for share in draw.uniform(-100, 100, 100))]
    infos = {
        name: tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=0)
        for name, count in grammar.COUNTS.items()
    }
    sums = ["train+test", "test[:-2] + train[5:10]+test[-1%:]", "validation+validation"]
    for expression in [*(f"{name}{part}" for name in infos for part in slices), *sums]:
        theirs = tfds.core.ReadInstruction.from_spec(expression).to_absolute(infos)
        expected = [
            (part.splitname, *slice(part.from_, part.to).indices(grammar.COUNTS[part.splitname]))
            for part in theirs
        ]
        ranges = embedded.ranges(expression)
        assert [(name, part.start, part.stop, part.step) for name, part in ranges] == expected


@pytest.mark.parametrize("expression", ["dev", "", "train+", "train[3]", "train[5:10%x]", "all"])
def test_what_is_no_split_expression_is_told_what_is(expression):
    with pytest.raises(ValueError, match=r"no split '.*its splits are train, .*train\[10%:20%\]"):
        embedded.ranges(expression)


@pytest.mark.parametrize("part", ["test[:2001]", "test[-2001:]", "train[:100.1%]", "test[-101%:]"])
def test_a_bound_outside_of_the_split_is_refused(part):
    with pytest.raises(ValueError, match="'embedded': '.*' exceeds its (2000|100000) examples"):
        embedded.ranges(part)


def test_pairs_have_all_features_in_the_order_of_the_corpus(load, monkeypatch):
    monkeypatch.setattr(embedded, "BLOCK", 3)
    train, test = (list(grammar.examples(split, 20)) for split in ("train", "test"))
    pairs = load(PAIRS, "train[5:10]+test[:3]", "train[19:20]")
    expected = [*train[5:10], *test[:3], train[19]]
    assert pairs == {name: [example[name] for example in expected] for name in grammar.FEATURES}
    with pytest.raises(ValueError, match=r"english_german_grammar.*'train\[5:3\]' has no example"):
        load(PAIRS, "train[:5]", "train[5:3]")


def test_texts_labels_tags_and_other_pairs_are_features_of_the_pairs(load):
    splits = ("train[:20]", "test[:5]")
    whole = load(PAIRS, *splits)
    assert load(TEXTS, *splits, text="target") == {"text": whole["target"]}

    pairs = zip(whole["source"], whole["antecedent"], strict=True)
    answers = [pair for pair in pairs if pair[1]]
    assert 5 < len(answers) < 25  # some sentences have no "it", and those of test all have
    labelled = load(LABELLED, *splits, label="antecedent")
    assert list(zip(labelled["text"], labelled["label"], strict=True)) == answers
    others = load(PAIRS, *splits, target_language="antecedent")
    assert list(zip(others["source"], others["target"], strict=True)) == answers
    swapped = load(PAIRS, *splits, source_language="de", target_language="en")
    assert swapped == {"source": whole["target"], "target": whole["source"]}

    tagged = load(TAGGED, *splits, label="tags")
    assert [" ".join(words) for words in tagged["words"]] == whole["source"]
    assert [" ".join(tags) for tags in tagged["tags"]] == whole["tags"]


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        (TAGGED, {"label": "antecedent"}, "example 0 has .* words, but [01] tags"),
        (LABELLED, {"label": "gender"}, "data.label_feature='gender': .*its features: .*pronoun"),
        (LABELLED, {"label": "antecedent"}, "data.label_feature: no example has a label"),
        (PAIRS, {"target_language": "fr"}, "data.target_language='fr': .*no such feature"),
    ],
)
def test_features_that_do_not_fit_the_columns(load, columns, changes, message):
    with pytest.raises(ValueError, match=message):
        load(columns, "train[:1]", **changes)  # a sentence without "it"
