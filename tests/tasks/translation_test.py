"""Translations of lines and splits, and their scores."""

import dataclasses

import numpy as np
import pytest

from tests.tasks.small import LINES, decoding, results, score
from transformer_jax.evaluation.scores import chrf


def test_samples_of_a_translation_are_as_many_as_asked_for(models):
    run, params = models("translation")
    outputs = results(decoding(run, num_samples=4), params, LINES)
    assert [len(samples) for samples in outputs] == [4] * len(LINES)
    assert outputs[1] == [""] * 4 and len(set(outputs[3])) > 1
    # A line draws by its number, whether those before it are blank or not.
    full = results(decoding(run, num_samples=4), params, [line or LINES[0] for line in LINES])
    assert full[2:] == outputs[2:]
    assert results(run, params, []) == []


def test_scores_of_translations_are_of_one_translation_each(models):
    """Also where `generate` would write several; both end before a stop text."""
    run, params = models("translation")
    split = run.data.split("test")
    stop = (results(run, params, split.examples["source"][:1])[0][0][-2:],)
    run = decoding(run, num_samples=2, stop=stop)
    scores, samples = score(run, params, split)
    assert {"bleu", "chrf", "exact_match", "bleu_signature", "chrf_signature"} == scores.keys()
    once = results(decoding(run, num_samples=1), params, split.examples["source"])
    assert not any(stop[0] in text for (text,) in once)
    right = [text == target for (text,), target in zip(once, split.examples["target"], strict=True)]
    assert scores["exact_match"] == pytest.approx(np.mean(right))
    assert samples[0][2] == once[0][0]
    ours = [text for (text,) in once]
    target, source = (
        chrf(ours, [[text] for text in split.examples[side]])["chrf"]
        for side in ("target", "source")
    )
    assert scores["chrf"] == pytest.approx(target) and target != source


def test_pronouns_are_scored_where_a_sentence_has_one(models):
    run, params = models("translation")
    split, names = run.data.split("test"), {"bleu", "chrf", "exact_match"}
    names |= {"bleu_signature", "chrf_signature"}
    for pronouns, more in ((["es", *[""] * 6], {"pronoun_accuracy"}), ([""] * 7, set())):
        examples = {**split.examples, "pronoun": pronouns}
        scores, _ = score(run, params, dataclasses.replace(split, examples=examples))
        assert scores.keys() == names | more and 0 <= scores.get("pronoun_accuracy", 0) <= 1
    assert f"tok:{run.evaluate.bleu_tokenizer}" in scores["bleu_signature"]
