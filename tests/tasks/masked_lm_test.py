"""What a masked language model says of texts: losses, samples, vectors."""

import numpy as np
import pytest

from tests.tasks.small import ALONE, LINES, score


def test_only_a_language_model_has_a_perplexity_a_word(models):
    run, params = models("masked_lm")
    metrics = run.task.losses(run.trained(params), run.data.split("test"))
    assert "word_perplexity" not in metrics and metrics["perplexity"] > 1


def test_samples_of_masked_words_show_the_text_hidden_whole_and_filled(models):
    run, params = models("masked_lm")
    split = run.data.split("test")
    scores, samples = score(run, params, split)
    assert scores == {} and 0 < len(samples)
    assert any("mask" in source for source, _, _ in samples)
    assert {reference for _, reference, _ in samples} <= set(split.examples["text"])
    for source, reference, output in samples:
        assert source != reference
        words = [text.replace("< mask >", "<mask>").split() for text in (source, reference, output)]
        # Where nothing is asked, the output is the text.
        assert len(words[0]) == len(words[1]) == len(words[2])


@pytest.mark.parametrize("task", ["masked_lm", "classification"])
def test_vectors_of_lines_come_in_their_order_whatever_the_batches(models, task):
    run, params = models(task)
    model = run.trained(params)
    vectors = model.embed(LINES)
    assert vectors.shape == (len(LINES), 8) and np.isfinite(vectors).all()
    for number in ALONE:
        (alone,) = model.embed([LINES[number]])
        np.testing.assert_allclose(alone, vectors[number], atol=1e-5)
    assert np.abs(vectors[0] - vectors[3]).max() > 1e-3
    with pytest.raises(ValueError, match="no lines"):
        model.embed([])
