"""Labels of texts, and their scores."""

import numpy as np
import pytest

from tests.tasks.small import ALONE, LINES, decoding, log_probabilities, results, score


def test_a_class_is_the_likeliest_one_of_the_text(made):
    run, params = made("classification")
    # A label is not drawn, so there is one of it.
    found = results(decoding(run, method="sample", num_samples=3), params, LINES)
    assert found[1] == [""]
    for number in ALONE:
        ((batch, _),) = run.data.prompts([LINES[number]])
        log_p = log_probabilities(run, params, batch)[0, 0]
        assert found[number] == [run.data.labels[np.argmax(log_p)]]


def test_scores_of_classes_are_of_what_the_model_says_of_the_texts(made):
    run, params = made("classification")
    split = run.data.split("test")
    scores, samples = score(run, params, split)
    found = [label for (label,) in results(run, params, split.examples["text"])]
    right = [a == b for a, b in zip(found, split.examples["label"], strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert {"accuracy", "f1", "matthews"} == scores.keys()
    assert samples[0] == (split.examples["text"][0], split.examples["label"][0], found[0])
