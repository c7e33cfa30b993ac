"""Scores against published ones of real systems, and against what must hold of any text."""

import math
import os
import pathlib

import jax.numpy as jnp
import pytest
from sacrebleu.metrics.bleu import BLEU

from transformer_jax import metrics
from transformer_jax.data import grammar

HYPOTHESES = ["Das Tier ist müde .", "Die Straße ist breit ."]
REFERENCES = ["Das Tier war müde .", "Die Straße ist breit ."]


def newstest2021(name):
    """Lines of one of the files of the WMT21 news test set."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    path = pathlib.Path(folder or "", "newstest2021_en_de", f"newstest2021.en-de.{name}.de")
    if folder is None or not path.exists():
        pytest.skip("TRANSFORMER_JAX_DATA names no folder with newstest2021_en_de")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


# sacreBLEU 2.6.0 on the command line, reference A.
@pytest.mark.parametrize(
    ("system", "bleu", "chrf"),
    [
        ("Online-W", 29.71, 60.22),
        ("UEdin", 29.90, 59.47),
        ("BUPT_rush", 26.36, 57.06),
        ("ICL", 24.54, 55.19),
    ],
)
def test_real_systems_get_their_known_scores(system, bleu, chrf):
    hypotheses, references = newstest2021(f"hyp.{system}"), newstest2021("ref.A")
    score, signature = metrics.bleu(hypotheses, references, "13a")
    assert score == pytest.approx(bleu, abs=0.005)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    score, signature = metrics.chrf(hypotheses, references)
    assert score == pytest.approx(chrf, abs=0.005)
    assert signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


@pytest.mark.parametrize(
    ("system", "bleu_c", "bleu_d"),
    [
        ("Online-W", 41.35, 40.38),
        ("UEdin", 38.00, 35.67),
        ("BUPT_rush", 32.57, 32.08),
        ("ICL", 30.40, 28.24),
    ],
)
def test_real_systems_get_their_known_scores_by_other_references(system, bleu_c, bleu_d):
    hypotheses = newstest2021(f"hyp.{system}")
    for reference, bleu in (("C", bleu_c), ("D", bleu_d)):
        score, _ = metrics.bleu(hypotheses, newstest2021(f"ref.{reference}"), "13a")
        assert score == pytest.approx(bleu, abs=0.005)


@pytest.mark.parametrize(("system", "bleu"), [("Online-W", 26.25), ("ICL", 20.43)])
def test_real_systems_get_their_known_scores_without_tokenising(system, bleu):
    hypotheses, references = newstest2021(f"hyp.{system}"), newstest2021("ref.A")
    score, signature = metrics.bleu(hypotheses, references, "none")
    assert score == pytest.approx(bleu, abs=0.005)
    assert "|tok:none|" in signature


@pytest.mark.parametrize("tokenizer", ["13a", "none", "intl", "char"])
def test_bleu_is_that_of_sacrebleu_for_every_tokenizer(tokenizer):
    score, signature = metrics.bleu(HYPOTHESES, REFERENCES, tokenizer)
    expected = BLEU(tokenize=tokenizer).corpus_score(HYPOTHESES, [REFERENCES]).score
    assert score == expected and 0 < score < 100
    assert f"|tok:{tokenizer}|" in signature


def test_right_translations_get_the_highest_scores():
    assert metrics.bleu(REFERENCES, REFERENCES, "13a")[0] == pytest.approx(100)
    assert metrics.chrf(REFERENCES, REFERENCES)[0] == pytest.approx(100)
    assert metrics.exact_match(REFERENCES, REFERENCES) == 1


def test_exact_match_minds_all_but_outer_blanks():
    hypotheses = ["a b", " a b\n", "a  b", "A b", "a b ."]
    assert metrics.exact_match(hypotheses, ["a b"] * 5) == 2 / 5


@pytest.mark.parametrize(
    ("hypothesis", "right"),
    [
        ("Das Tier überquerte die Straße nicht , weil es zu müde war .", True),
        ("Das Tier überquerte die Straße nicht, weil es zu müde war.", True),
        ("Weil es zu müde war , überquerte das Tier die Straße nicht .", True),
        ("Es war zu müde .", True),
        ("Das Tier überquerte die Straße nicht , weil sie zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil es sie zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil es es zu müde war .", False),
        ("Er überquerte die Straße nicht , weil es zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil das Tier zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil dieses zu müde war .", False),
        ("", False),
    ],
)
def test_only_the_expected_pronoun_alone_is_right(hypothesis, right):
    assert metrics.pronoun_accuracy([hypothesis], ["es"]) == right


def test_sentences_without_a_pronoun_do_not_count():
    hypotheses = ["weil er müde war", "weil sie müde war", "weil sie müde waren"]
    assert metrics.pronoun_accuracy(hypotheses, ["er", "es", ""]) == 1 / 2


def test_every_reference_of_the_embedded_corpus_is_right_and_no_other_pronoun_is():
    examples = [grammar.sentence(0, index) for index in range(0, 2000)]
    pronouns = [example["pronoun"] for example in examples]
    targets = [example["target"] for example in examples]
    assert set(pronouns) == {"er", "sie", "es", ""}
    assert metrics.pronoun_accuracy(targets, pronouns) == 1
    others = {"er": "sie", "sie": "es", "es": "er", "": ""}
    assert metrics.pronoun_accuracy(targets, [others[pronoun] for pronoun in pronouns]) == 0


@pytest.mark.parametrize(
    "score",
    [
        lambda hypotheses, others: metrics.bleu(hypotheses, others, "13a"),
        metrics.chrf,
        metrics.exact_match,
        metrics.pronoun_accuracy,
    ],
)
def test_empty_and_unequal_lists_have_no_score(score):
    with pytest.raises(ValueError, match="empty"):
        score([], [])
    with pytest.raises(ValueError, match="2 hypotheses, but 1"):
        score(["a", "b"], ["a"])


def test_pronoun_accuracy_needs_a_pronoun():
    with pytest.raises(ValueError, match="none of the sentences"):
        metrics.pronoun_accuracy(["a"], [""])


def test_means_divide_sums_by_weights():
    window = {
        "token_loss": (jnp.float32(6), jnp.float32(4)),
        "accuracy": (jnp.float32(1), jnp.float32(4)),
        "gradient_norm": (3.5, 1),
    }
    assert metrics.means(window) == {
        "token_loss": 1.5,
        "accuracy": 0.25,
        "gradient_norm": 3.5,
        "perplexity": pytest.approx(math.exp(1.5)),
    }


def test_means_are_in_double_precision():
    mean = metrics.means({"x": (jnp.float32(1), jnp.float32(3))})["x"]
    assert mean == 1 / 3


def test_perplexity_of_a_diverged_run_is_infinite_or_not_a_number():
    assert metrics.means({"token_loss": (1e6, 1)})["perplexity"] == math.inf
    assert math.isnan(metrics.means({"token_loss": (math.nan, 1)})["perplexity"])


def test_a_mean_over_nothing_is_an_error():
    with pytest.raises(ValueError, match="no mean of accuracy"):
        metrics.means({"loss": (1.0, 2.0), "accuracy": (0.0, 0.0)})
