"""Tags of words, and their scores."""

import numpy as np
import pytest

from tests.tasks.small import results, score
from transformer_jax.tasks import tagging


def test_scores_of_tags_are_of_what_the_model_says_of_the_words(models):
    run, params = models("tagging")
    split = run.data.split("test")
    scores, samples = score(run, params, split)
    lines = [" ".join(words) for words in split.examples["words"]]
    blank, *outputs = [tags.split() for (tags,) in results(run, params, ["", *lines])]
    assert blank == []
    pairs = list(zip(outputs, split.examples["tags"], strict=True))
    right = [a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert scores["exact_match"] == pytest.approx(np.mean([a == b for a, b in pairs]))
    assert samples[0] == (lines[0], " ".join(split.examples["tags"][0]), " ".join(outputs[0]))


def test_span_tags_are_scored_as_spans_too():
    tags = [["B-a", "I-a", "O"], ["O", "O"]]
    assert tagging.score(tags, tags)["span_f1"] == 1
    assert tagging.score([["B-a", "O", "O"], ["O", "O"]], tags)["span_f1"] == 0
    assert "span_f1" not in tagging.score([["O", "S-a"]], [["O", "O"]])
    assert tagging.score([["O"]], [["O"]])["span_f1"] == 0


def test_tags_that_were_cut_off_are_wrong():
    tags = [["O", "B-a", "I-a", "O"], ["B-a", "O"]]
    scores = tagging.score([["O", "B-a"], ["B-a", "O"]], tags)
    # Of four predicted tags all are right. O: 2 of 3 found; B-a: 2 of 2; I-a: 0 of 1.
    expected = {
        "accuracy": 4 / 6,
        "f1": (4 / 5 + 1 + 0) / 3,
        "exact_match": 1 / 2,
        "span_f1": 1 / 2,
    }
    assert scores == pytest.approx(expected)
    all_lost = tagging.score([[], []], tags)
    assert all_lost == {"accuracy": 0, "f1": 0, "exact_match": 0, "span_f1": 0}
