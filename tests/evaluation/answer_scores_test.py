"""Scores of texts with several references, against the published scripts' examples."""

import collections
import re
import string

import numpy as np
import pytest

from transformer_jax.evaluation import answer_scores as answers

PAIRS = [
    ("the quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log."),
    ("", "something"),
    ("An apple, a day!", "apple day"),
    ("same same different", "same other"),
    ("308", "308 points"),
]


def published_f1(prediction, ground_truth):
    """As evaluate-v1.1.py of SQuAD has it."""

    def normalize_answer(s):
        s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())

    prediction_tokens = normalize_answer(prediction).split()
    ground_truth_tokens = normalize_answer(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def test_rouge_gives_the_example_of_its_readme():
    """google-research/rouge: RougeScorer(["rouge1", "rougeL"], use_stemmer=True)."""
    (reference, hypothesis), *_ = PAIRS
    scores = answers.rouge([hypothesis], [[reference]])
    # 6 of 8 and 9 words are shared, 5 in their order: P = 6/8, R = 6/9.
    assert scores["rouge1"] == pytest.approx(2 * 6 / (8 + 9))
    assert scores["rougeL"] == pytest.approx(2 * 5 / (8 + 9))
    # "the quick" and "quick brown" of 7 and 8 pairs, "the" of the last being another pair.
    assert scores["rouge2"] == pytest.approx(2 * 2 / (7 + 8))
    assert "rouge1_mean" not in scores and "rouge-score" in scores["rouge_signature"]


def test_rouge_stems_words_and_takes_the_best_and_the_mean_of_the_references():
    scores = answers.rouge(["dogs barking"], [["dog barked", "cats"]])
    assert scores["rouge1"] == 1 and scores["rouge1_mean"] == 0.5
    one = answers.rouge(["dogs barking", "a cat"], [["dog barked"], ["a cow"]])
    assert one["rougeL"] == pytest.approx((1 + 0.5) / 2)


def test_squad_is_counted_as_its_script_does():
    for reference, hypothesis in PAIRS:
        assert answers.word_f1(hypothesis, reference) == pytest.approx(
            published_f1(hypothesis, reference)
        )
    hypotheses = ["The 308!", "red", "blue whale"]
    references = [["308 points", "308"], ["green"], ["a blue whale", "whale"]]
    scores = answers.squad(hypotheses, references)
    assert scores == {"f1": pytest.approx(2 / 3), "squad_exact_match": pytest.approx(2 / 3)}
    partly = answers.squad(["blue whale"], [["whale shark", "a whale"]])
    assert partly == {"f1": pytest.approx(2 / 3), "squad_exact_match": 0}


def test_texts_are_normalised_as_squad_says():
    assert answers.normalised(" The  cat's an Animal, a-b.") == "cats animal ab"
    assert answers.normalised("theatre") == "theatre"  # an article is a whole word


def test_any_reference_is_an_exact_match():
    assert answers.exact_match([" a ", "b", "C"], [["x", "a"], ["b"], ["c"]]) == pytest.approx(
        2 / 3
    )


@pytest.mark.parametrize("name", answers.METRICS)
def test_each_metric_is_best_where_a_text_is_its_first_reference(name):
    texts = ["the cat sat on the mat", "dogs bark at night in the rain"]
    others = texts[::-1]
    right = answers.METRICS[name](texts, [[text] for text in texts], "13a")
    wrong = answers.METRICS[name](others, [[text] for text in texts], "13a")
    for key, value in right.items():
        if isinstance(value, float):
            assert np.isclose(value, 100 if key in ("bleu", "chrf") else 1)
            assert wrong[key] < value


@pytest.mark.parametrize("name", answers.METRICS)
def test_there_is_no_score_without_texts_or_references(name):
    with pytest.raises(ValueError, match="empty list"):
        answers.METRICS[name]([], [], "13a")
    with pytest.raises(ValueError, match="2 .*1|1 .*2"):
        answers.METRICS[name](["a", "b"], [["a"]], "13a")
