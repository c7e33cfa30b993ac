"""Scores against published ones of real systems, and against what must hold of any text."""

import gzip
import itertools
import math
import os
import pathlib

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from transformer_jax.data.corpora import grammar
from transformer_jax.evaluation import scores as metrics

HYPOTHESES = ["Das Tier ist müde .", "Die Straße ist breit ."]
REFERENCES = ["Das Tier war müde .", "Die Straße ist breit ."]


def real_data(*path):
    """A file of the folder of real data; the test is skipped where there is none."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if folder is None or not pathlib.Path(folder, *path).exists():
        pytest.skip(f"TRANSFORMER_JAX_DATA names no folder with {path[0]}")
    return pathlib.Path(folder, *path)


def newstest2021(name):
    """Lines of one of the files of the WMT21 news test set."""
    path = real_data("newstest2021_en_de", f"newstest2021.en-de.{name}.de")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def wnut17(name):
    """The tags of each post of a file of the WNUT 2017 shared task."""
    with gzip.open(real_data("wnut17", f"{name}.gz"), "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file.read().split("\n")]
    posts = [list(group) for filled, group in itertools.groupby(lines, key=bool) if filled]
    return [[line.split("\t")[-1] for line in post] for post in posts]


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
    examples = list(grammar.examples("train", 2000))
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
        metrics.accuracy,
        metrics.f1,
        metrics.matthews,
        metrics.span_f1,
    ],
)
def test_empty_and_unequal_lists_have_no_score(score):
    with pytest.raises(ValueError, match="empty"):
        score([], [])
    with pytest.raises(ValueError, match=r"2 \w+, but 1"):
        score(["a", "b"], ["a"])


def test_pronoun_accuracy_needs_a_pronoun():
    with pytest.raises(ValueError, match="none of the sentences"):
        metrics.pronoun_accuracy(["a"], [""])


# As the shared task published them (Derczynski et al. 2017, over all entities of the test set).
@pytest.mark.parametrize(("system", "span_f1"), [("uh_ritual", 41.86), ("drexel_cci", 26.30)])
def test_submissions_to_wnut_2017_get_their_published_scores(system, span_f1):
    expected = wnut17("emerging.test.annotated")
    score = metrics.span_f1(wnut17(f"submissions/{system}"), expected)
    assert len(expected) == 1287
    assert 100 * score == pytest.approx(span_f1, abs=0.005)


def span_set(sentences):
    """(sentence, type, first, last) of every span, by a slow reading of conlleval."""
    spans = set()
    for number, tags in enumerate(sentences):
        current = None
        for place, tag in enumerate([*tags, "O"]):
            prefix, _, kind = tag.partition("-")
            if current and not (prefix == "I" and kind == current[0]):
                spans.add((number, *current, place - 1))
                current = None
            if prefix != "O" and current is None:
                current = (kind, place)
    return spans


@pytest.mark.parametrize("seed", range(5))
def test_span_f1_of_random_tags_equals_a_slow_count_of_spans(seed):
    rng = np.random.default_rng(seed)
    tags = ["O", "B-a", "I-a", "B-b", "I-b"]
    expected = [list(rng.choice(tags, size=size)) for size in (1, 0, 7, 20, 40)]
    predicted = [
        [str(rng.choice(tags)) if rng.random() < 0.4 else tag for tag in row] for row in expected
    ]
    ours, theirs = span_set(predicted), span_set(expected)
    assert 0 < len(ours & theirs) < len(ours | theirs)
    wanted = 2 * len(ours & theirs) / (len(ours) + len(theirs))
    assert metrics.span_f1(predicted, expected) == pytest.approx(wanted)


def test_spans_end_with_their_sentence():
    assert metrics.span_f1([["B-a"], ["I-a"]], [["B-a"], ["B-a"]]) == 1
    assert metrics.span_f1([["B-a", "I-a"]], [["B-a", "B-a"]]) == 0


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ([["O", "O"]], [["O", "O"]]),
        ([["O", "O"]], [["B-a", "I-a"]]),
        ([["B-a", "I-a"]], [["O", "O"]]),
        ([[]], [[]]),
    ],
)
def test_span_f1_without_spans_is_0(predicted, expected):
    assert metrics.span_f1(predicted, expected) == 0


def test_span_f1_is_of_bio_tags_and_sentences_of_equal_length():
    with pytest.raises(ValueError, match="'NOUN'"):
        metrics.span_f1([["O"]], [["NOUN"]])
    with pytest.raises(ValueError, match="'E-a'"):
        metrics.span_f1([["E-a"]], [["O"]])
    with pytest.raises(ValueError, match="2 tags has 1"):
        metrics.span_f1([["O"]], [["O", "O"]])


def label_case(seed):
    """Predicted and expected labels of five classes, of which "e" is only ever predicted."""
    rng = np.random.default_rng(seed)
    expected = [str(label) for label in rng.choice(list("abcd"), size=60)]
    predicted = [
        str(rng.choice(list("abcde"))) if rng.random() < 0.5 else label for label in expected
    ]
    return predicted, expected


@pytest.mark.parametrize("seed", range(3))
def test_scores_of_labels_equal_their_definitions(seed):
    predicted, expected = label_case(seed)
    names = sorted({*predicted, *expected})
    ours = np.array([[label == name for name in names] for label in predicted], float)
    theirs = np.array([[label == name for name in names] for label in expected], float)
    assert metrics.accuracy(predicted, expected) == pytest.approx((ours * theirs).sum() / len(ours))
    f1 = 2 * (ours * theirs).sum(axis=0) / (ours.sum(axis=0) + theirs.sum(axis=0))
    assert metrics.f1(predicted, expected) == pytest.approx(f1.mean())
    # Gorodkin 2004: the correlation of two matrices of indicators.
    ours, theirs = ours - ours.mean(axis=0), theirs - theirs.mean(axis=0)
    matthews = (ours * theirs).sum() / np.sqrt((ours**2).sum() * (theirs**2).sum())
    assert metrics.matthews(predicted, expected) == pytest.approx(matthews)


def test_what_is_not_predicted_is_wrong_but_no_class_of_its_own():
    predicted, expected = ["a", metrics.NOTHING, "b"], ["a", "a", "b"]
    assert metrics.accuracy(predicted, expected) == pytest.approx(2 / 3)
    assert metrics.f1(predicted, expected) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.f1([metrics.NOTHING], ["a"]) == 0


@pytest.mark.parametrize(
    ("predicted", "expected", "accuracy"),
    [(["a", "a"], ["a", "a"], 1.0), (["b", "b"], ["a", "a"], 0.0), (["a", "a"], ["a", "b"], 0.5)],
)
def test_labels_of_one_class_have_no_correlation(predicted, expected, accuracy):
    assert metrics.accuracy(predicted, expected) == accuracy
    assert 0 <= metrics.f1(predicted, expected) <= accuracy
    assert metrics.matthews(predicted, expected) == 0


def test_perplexity_of_words_counts_line_ends():
    nats = 6 * math.log(7)
    assert metrics.word_perplexity(nats, ["a  b"]) == pytest.approx(7**2)
    assert metrics.word_perplexity(nats, ["a b\nc d\n"]) == pytest.approx(7)
    assert metrics.word_perplexity(nats, ["a b\nc d"]) == pytest.approx(7)
    assert metrics.word_perplexity(nats, ["a b", "c", " "]) == pytest.approx(7)


def test_perplexity_of_words_is_the_same_however_a_text_is_cut_into_lines():
    text = " \n = a = \n \n b c d , e \n \n"
    lines = text.removesuffix("\n").split("\n")
    assert metrics.word_perplexity(20.0, [text]) == metrics.word_perplexity(20.0, lines)


def test_perplexity_of_words_overflows_to_infinity_and_needs_words():
    assert metrics.word_perplexity(1e9, ["a"]) == math.inf
    with pytest.raises(ValueError, match="empty list of texts"):
        metrics.word_perplexity(1.0, [])


# Merity et al. 2016, table 1.
@pytest.mark.parametrize(("split", "tokens"), [("valid", 217_646), ("test", 245_569)])
def test_wikitext2_has_its_published_number_of_words(split, tokens):
    with gzip.open(real_data("wikitext2", f"{split}.txt.gz"), "rt", encoding="utf-8") as file:
        text = file.read()
    assert metrics.word_perplexity(tokens, [text]) == pytest.approx(math.e, rel=1e-9)
    lines = text.removesuffix("\n").split("\n")
    assert metrics.word_perplexity(tokens, lines) == pytest.approx(math.e, rel=1e-9)
