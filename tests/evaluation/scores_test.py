"""Scores against published ones of real systems, and against what must hold of any text."""

import gzip
import itertools
import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from tests.data.read.published_test import published
from transformer_jax.data.corpora import grammar
from transformer_jax.evaluation import scores
from transformer_jax.evaluation.scores import METRICS

HYPOTHESES = ["Das Tier ist müde .", "Die Straße ist breit ."]
REFERENCES = ["Das Tier war müde .", "Die Straße ist breit ."]
QUICK = "the quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log."


def alone(texts):
    """One reference for each."""
    return [[text] for text in texts]


def newstest2021(name):
    """Lines of one of the files of the WMT21 news test set."""
    path = published(f"newstest2021_en_de/newstest2021.en-de.{name}.de")
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def wnut17(name):
    """The tags of each post of a file of the WNUT 2017 shared task."""
    with gzip.open(published(f"wnut17/{name}.gz"), "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file.read().split("\n")]
    posts = [list(group) for filled, group in itertools.groupby(lines, key=bool) if filled]
    return [[line.split("\t")[-1] for line in post] for post in posts]


# sacreBLEU 2.6.0 on the command line, by reference A.
@pytest.mark.parametrize(
    ("system", "chrf", "bleu"), [("UEdin", 59.47, 29.90), ("ICL", 55.19, 24.54)]
)
def test_real_systems_get_their_known_scores(system, chrf, bleu):
    hypotheses, references = newstest2021(f"hyp.{system}"), alone(newstest2021("ref.A"))
    metrics = scores.bleu(hypotheses, references, "13a")
    assert metrics["bleu"] == pytest.approx(bleu, abs=0.005)
    signature = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    assert metrics["bleu_signature"].startswith(signature)
    metrics = scores.chrf(hypotheses, references)
    assert metrics["chrf"] == pytest.approx(chrf, abs=0.005)
    signature = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    assert metrics["chrf_signature"].startswith(signature)


@pytest.mark.parametrize("tokenizer", scores.BLEU_TOKENIZERS)
def test_bleu_is_that_of_sacrebleu_for_every_tokenizer(tokenizer):
    metrics = scores.bleu(HYPOTHESES, alone(REFERENCES), tokenizer)
    expected = BLEU(tokenize=tokenizer).corpus_score(HYPOTHESES, [REFERENCES]).score
    assert metrics["bleu"] == expected and 0 < expected < 100
    assert f"|tok:{tokenizer}|" in metrics["bleu_signature"]


def test_exact_match_minds_all_but_outer_blanks_and_takes_any_reference():
    hypotheses = ["a b", " a b\n", "a  b", "A b", "a b .", "b"]
    references = [["a b"]] * 5 + [["x", "b"]]
    assert scores.exact_match(hypotheses, references) == {"exact_match": 3 / 6}


def test_rouge_gives_the_example_of_its_readme():
    """google-research/rouge: RougeScorer(["rouge1", "rougeL"], use_stemmer=True)."""
    reference, hypothesis = QUICK
    metrics = scores.rouge([hypothesis], [[reference]])
    # 6 of 8 and 9 words are shared, 5 in their order: P = 6/8, R = 6/9.
    assert metrics["rouge1"] == pytest.approx(2 * 6 / (8 + 9))
    assert metrics["rougeL"] == pytest.approx(2 * 5 / (8 + 9))
    # "the quick" and "quick brown" of 7 and 8 pairs, "the" of the last being another pair.
    assert metrics["rouge2"] == pytest.approx(2 * 2 / (7 + 8))
    assert "rouge1_mean" not in metrics and "rouge-score" in metrics["rouge_signature"]


def test_rouge_stems_words_and_takes_the_best_and_the_mean_of_the_references():
    metrics = scores.rouge(["dogs barking"], [["dog barked", "cats"]])
    assert metrics["rouge1"] == 1 and metrics["rouge1_mean"] == 0.5
    one = scores.rouge(["dogs barking", "a cat"], [["dog barked"], ["a cow"]])
    assert one["rougeL"] == pytest.approx((1 + 0.5) / 2)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "f1"),
    [
        (*QUICK, 2 * 4 / (7 + 6)),  # articles do not count
        ("", "something", 0),
        ("An apple, a day!", "apple day", 1),
        ("same same different", "same other", 2 * 1 / (3 + 2)),
        ("308", "308 points", 2 * 1 / (1 + 2)),
        ("cats animal ab", " The  cat's an Animal, a-b.", 1),
        ("theatre", "the theatre", 1),  # an article is a whole word
    ],
)
def test_words_are_counted_as_squads_script_does(reference, hypothesis, f1):
    assert scores.word_f1(hypothesis, reference) == pytest.approx(f1)


def test_squad_takes_the_best_of_the_references():
    hypotheses = ["The 308!", "red", "blue whale"]
    references = [["308 points", "308"], ["green"], ["a blue whale", "whale"]]
    metrics = scores.squad(hypotheses, references)
    assert metrics == {"f1": pytest.approx(2 / 3), "squad_exact_match": pytest.approx(2 / 3)}
    partly = scores.squad(["blue whale"], [["whale shark", "a whale"]])
    assert partly == {"f1": pytest.approx(2 / 3), "squad_exact_match": 0}


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_best_where_a_text_is_its_first_reference(name):
    texts = ["the cat sat on the mat", "dogs bark at night in the rain"]
    others = texts[::-1]
    right = METRICS[name](texts, [[text] for text in texts], "13a")
    wrong = METRICS[name](others, [[text] for text in texts], "13a")
    for key, value in right.items():
        if isinstance(value, float):
            assert np.isclose(value, 100 if key in ("bleu", "chrf") else 1)
            assert wrong[key] < value


@pytest.mark.parametrize(
    ("hypothesis", "right"),
    [
        ("Das Tier überquerte die Straße nicht , weil es zu müde war .", True),
        ("Weil es zu müde war , überquerte das Tier die Straße nicht .", True),
        ("Es war zu müde .", True),
        ("Das Tier überquerte die Straße nicht , weil sie zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil es sie zu müde war .", False),
        ("Das Tier überquerte die Straße nicht , weil es es zu müde war .", False),
        ("Er überquerte die Straße nicht , weil es zu müde war .", False),
        ("", False),
    ],
)
def test_only_the_expected_pronoun_alone_is_right(hypothesis, right):
    assert scores.pronoun_accuracy([hypothesis], ["es"]) == right


def test_every_reference_of_the_embedded_corpus_is_right_and_no_other_pronoun_is():
    examples = list(grammar.examples("train", 2000))
    pronouns = [example["pronoun"] for example in examples]
    targets = [example["target"] for example in examples]
    assert set(pronouns) == {"er", "sie", "es", ""}
    assert scores.pronoun_accuracy(targets, pronouns) == 1
    others = {"er": "sie", "sie": "es", "es": "er", "": ""}
    assert scores.pronoun_accuracy(targets, [others[pronoun] for pronoun in pronouns]) == 0


OF_TEXTS = {
    name: lambda ours, theirs, score=score: score(ours, theirs, "13a")
    for name, score in METRICS.items()
}
OF_LABELS = (scores.pronoun_accuracy, scores.label_scores, scores.matthews)


@pytest.mark.parametrize("score", [*OF_TEXTS.values(), scores.span_f1, *OF_LABELS])
def test_unequal_lists_have_no_score(score):
    with pytest.raises(ValueError):
        score(["a", "b"], ["a" if score in OF_LABELS else ["a"]])


# As the shared task published them (Derczynski et al. 2017, over all entities of the test set).
@pytest.mark.parametrize(("system", "span_f1"), [("uh_ritual", 41.86), ("drexel_cci", 26.30)])
def test_submissions_to_wnut_2017_get_their_published_scores(system, span_f1):
    expected = wnut17("emerging.test.annotated")
    score = scores.span_f1(wnut17(f"submissions/{system}"), expected)
    assert len(expected) == 1287
    assert 100 * score == pytest.approx(span_f1, abs=0.005)


# Sentences of tags, predicted and expected; how many spans are in both, and in each.
SPANS = [
    ("O O", "O O", (0, 0, 0)),
    ("O O", "B-a I-a", (0, 0, 1)),
    ("B-a I-a", "O O", (0, 1, 0)),
    ("", "", (0, 0, 0)),
    ("B-a I-a O", "B-a I-a B-b", (1, 1, 2)),
    ("B-a I-b I-b", "B-a B-b I-b", (2, 2, 2)),  # an I- that continues none of its kind begins one
    ("B-a I-a", "B-a B-a", (0, 1, 2)),
    ("B-a / I-a", "B-a / B-a", (2, 2, 2)),  # spans end with their sentence
    ("I-a O B-a / B-b", "I-a O B-b / B-b", (2, 3, 3)),
]


@pytest.mark.parametrize(("predicted", "expected", "counts"), SPANS)
def test_span_f1_is_of_whole_spans_as_conlleval_counts_them(predicted, expected, counts):
    tags, wanted = (
        [sentence.split() for sentence in text.split("/")] for text in (predicted, expected)
    )
    both, ours, theirs = counts
    assert scores.span_f1(tags, wanted) == pytest.approx(2 * both / max(ours + theirs, 1))


def test_scores_of_labels_are_those_of_their_definitions():
    """The mean F1 of a, b, and c, which is only ever predicted; and the correlation of two."""
    metrics = scores.label_scores(list("aabbc"), list("aaaba"))
    assert metrics == pytest.approx({"accuracy": 3 / 5, "f1": (4 / 6 + 2 / 3 + 0) / 3})
    # Right are one a and two b; one a is taken for b.
    correlation = (1 * 2 - 1 * 0) / math.sqrt((1 + 0) * (1 + 1) * (2 + 0) * (2 + 1))
    assert scores.matthews(list("abbb"), list("aabb")) == pytest.approx(correlation)


@pytest.mark.parametrize(
    ("predicted", "expected", "accuracy"),
    [(["a", "a"], ["a", "a"], 1.0), (["b", "b"], ["a", "a"], 0.0), (["a", "a"], ["a", "b"], 0.5)],
)
def test_labels_of_one_class_have_no_correlation(predicted, expected, accuracy):
    metrics = scores.label_scores(predicted, expected)
    assert metrics["accuracy"] == accuracy >= metrics["f1"] >= 0
    assert scores.matthews(predicted, expected) == 0


LINES = [" ", " = a = ", " ", " b c d , e ", " "]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a  b"], 3),
        (["a b\nc d\n"], 6),
        (["a b\nc d"], 6),
        (["a b", "c", " "], 6),
        (["a\u00a0b\u3000c\td \u2028e\x85"], 3),  # blanks alone divide, as for the tokenizer
        (LINES, 13),
        (["\n".join(LINES) + "\n"], 13),  # however a text is cut into lines
    ],
)
def test_perplexity_of_words_counts_line_ends(texts, words):
    assert scores.word_perplexity(6 * math.log(7), texts) == pytest.approx(7 ** (6 / words))


def test_perplexity_of_words_overflows_to_infinity():
    assert scores.word_perplexity(1e9, ["a"]) == math.inf


# Merity et al. 2016, table 1.
@pytest.mark.parametrize(("split", "tokens"), [("valid", 217_646), ("test", 245_569)])
def test_wikitext2_has_its_published_number_of_words(split, tokens):
    with gzip.open(published(f"wikitext2/{split}.txt.gz"), "rt", encoding="utf-8") as file:
        text = file.read()
    assert scores.word_perplexity(tokens, [text]) == pytest.approx(math.e, rel=1e-9)
    lines = text.removesuffix("\n").split("\n")
    assert scores.word_perplexity(tokens, lines) == pytest.approx(math.e, rel=1e-9)
