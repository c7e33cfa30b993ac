"""Labels of texts, and their scores."""

import numpy as np
import pytest

from tests.tasks.small import ALONE, LINES, decoding, log_probabilities, results, score


def test_a_class_is_the_likeliest_one_of_the_text(models):
    run, params = models("classification")
    # A label is not drawn, so there is one of it.
    labels = results(decoding(run, method="sample", num_samples=3), params, LINES)
    assert labels[1] == [""]
    for number in ALONE:
        ((batch, _),) = run.data.prompts([LINES[number]])
        log_p = log_probabilities(run, params, batch)[0, 0]
        assert labels[number] == [run.data.labels[np.argmax(log_p)]]


def test_scores_of_classes_are_of_what_the_model_says_of_the_texts(models):
    run, params = models("classification")
    split = run.data.split("test")
    scores, samples = score(run, params, split)
    labels = [label for (label,) in results(run, params, split.examples["text"])]
    right = [a == b for a, b in zip(labels, split.examples["label"], strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right))
    assert {"accuracy", "f1", "matthews"} == scores.keys()
    assert samples[0] == (split.examples["text"][0], split.examples["label"][0], labels[0])
