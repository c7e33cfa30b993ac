"""Answers to texts: parts that are scored apart, and what training has seen of them."""

import numpy as np
import pytest

from tests.tasks.small import TINY, beside, initial, results, score
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.evaluation.scores import chrf
from transformer_jax.tasks import text_to_text

HYPOTHESES = ["the cat", "a dog", "yes", "no", "no"]
REFERENCES = [["the cat"], ["a cat", "a dog"], ["yes"], ["yes"], ["no"]]
PARTS = {
    "names": (("exact_match", "squad"), range(0, 2)),
    "yes_no": (("exact_match", "bleu"), range(2, 5)),
}


def scores_of(seen, parts=PARTS):
    seen = np.isin(np.arange(5), seen)
    return text_to_text.score(HYPOTHESES, REFERENCES, parts, seen, bleu_tokenizer="none")


def test_each_part_has_its_own_scores_and_their_mean_has_no_part():
    scores = scores_of([])
    assert scores["names/exact_match"] == scores["names/f1"] == 1
    assert scores["yes_no/exact_match"] == pytest.approx(2 / 3)
    assert "tok:none" in scores["yes_no/bleu_signature"]
    # The mean over parts, not over examples; of what one part alone is scored by there is none.
    assert scores["exact_match"] == pytest.approx((1 + 2 / 3) / 2)
    assert "f1" not in scores and "bleu" not in scores
    assert scores["repeats"] == 0 and not any(name.startswith("unseen/") for name in scores)


def test_what_training_has_seen_is_taken_out_of_a_second_figure():
    scores, before = scores_of([2, 4]), scores_of([])
    assert scores["repeats"] == 2
    assert scores["unseen/yes_no/exact_match"] == 0  # of the one that is left
    assert scores["unseen/names/exact_match"] == 1
    assert scores["unseen/exact_match"] == 0.5
    assert before.items() <= (scores | {"repeats": 0}).items()
    # A part of which nothing is left has no score, and the mean of the others is of other parts.
    scores = scores_of([0, 1])
    assert "unseen/names/exact_match" not in scores and "unseen/exact_match" not in scores
    assert "unseen/yes_no/exact_match" in scores


def test_a_set_without_parts_is_scored_under_plain_names():
    scores = scores_of([], {"": (("exact_match",), range(5))})
    assert scores == {"exact_match": pytest.approx(4 / 5), "repeats": 0}


def test_an_answer_has_as_many_tokens_as_it_may_have_whatever_the_prompt(models):
    run, _ = models("text_to_text")
    lengths = np.array([2, 50])
    assert run.task.limit(lengths, 6, None).tolist() == [6, 6]
    assert run.task.limit(lengths, 6, 4).tolist() == [4, 4]


def test_parts_of_one_set_are_read_prefixed_and_scored_apart(models):
    plain, _ = models("text_to_text")
    languages = "data.source_language=de", "data.target_language=en"
    parts = (
        ("upper", 3.0, "data.prefix=upper: "),
        ("lower", 1.0, "data.prefix=lower: ", *languages, "evaluate.metrics=('chrf',)"),
    )
    changes = {"task.name": "text_to_text", "data.parts": parts, "data.max_source_length": 16}
    run = beside(plain, changes | {"data.prefix": "upper: "})  # of no part, and of no line
    split = run.data.split("test")
    assert split.parts == {"upper": range(0, 7), "lower": range(7, 14)}
    for upper, lower in zip(range(7), range(7, 14), strict=True):
        texts = split.examples["source"], split.examples["target"]
        assert texts[0][upper] == f"upper: {texts[1][lower]}"
        assert texts[0][lower] == f"lower: {texts[1][upper]}"
        assert texts[1][upper] == texts[1][lower].upper()
    params = initial(run)
    scores, _ = score(run, params, split)
    ours = [text for (text,) in results(run, params, split.examples["source"])]
    upper, lower = (
        chrf(ours[part], [[text] for text in split.examples["target"][part]])["chrf"]
        for part in (slice(0, 7), slice(7, 14))
    )
    assert scores["lower/chrf"] == pytest.approx(lower) and lower != upper
    assert {"upper/exact_match", "lower/chrf", "repeats"} <= scores.keys()
    assert "lower/exact_match" not in scores


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((("a", 1.0), ("a", 1.0)), "'a' of row 1"),
        ((("a/b", 1.0),), "'a/b' of row 0"),
        ((("a", 0.0),), "data.parts: the weight 0.0 of row 0"),
        ((("a", 1.0, "model.d_model=3"),), "'model.d_model'; expected one of data.source"),
        ((("a", 1.0, "data.source=jsn"),), "data.source='jsn' is not one of"),
        ((("a", 1.0, "evaluate.metrics=('f1',)"),), "'f1' is not one of 'exact_match'"),
        ((("a", 1.0, "data.train=()"),), "no part has a data.train"),
    ],
)
def test_a_mistake_in_a_part_is_named(rows, message):
    with pytest.raises(ValueError, match=message):
        _build(rows)


def test_a_part_has_no_split_of_its_own_where_validation_is_held_out_of_train():
    rows = (("a", 1.0), ("b", 1.0, "data.validation=('own',)"))
    settings = {"data.validation": (), "data.validation_size": 2}
    with pytest.raises(ValueError, match=r"data.validation=\('own',\) of part 'b' for others"):
        _build(rows, **settings)


def _build(rows, **settings):
    config = TINY | {"task.name": "text_to_text", "data.parts": rows, "data.dir": "."} | settings
    return build(load("configs/default.py", config))
