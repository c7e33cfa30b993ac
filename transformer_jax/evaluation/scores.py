"""Scores of texts and labels on the host, by well-known libraries.

scikit-learn, and seqeval which is built on it, are imported where they are called: that takes as
long as importing JAX, and most runs do without them.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

# Those of sacreBLEU: how WMT does it, text that is tokenised already, other scripts, characters.
BLEU_TOKENIZERS = ("13a", "none", "intl", "char")

# In the place of a label: nothing was predicted here, which is wrong whatever was expected.
NOTHING = ""

# German pronouns of the third person; which one stands for "it" depends on gender and case.
PRONOUNS = frozenset({"er", "sie", "es", "ihn", "ihm", "ihr", "ihnen"})


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str) -> tuple[float, str]:
    """Corpus BLEU, 0 to 100, and sacreBLEU's signature (Post 2018, arXiv 1804.08771).

    Args:
      tokenizer: sacreBLEU's name: "13a", "none" (split on blanks), "intl", "char".

    Raises:
      ValueError: no sentences, or not one reference for each hypothesis.
    """
    # force: text that looks tokenised is meant to (it changes a warning, not the score).
    return _corpus_score(BLEU(tokenize=tokenizer, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus chrF2, 0 to 100, and sacreBLEU's signature (Popovic 2015). Raises as `bleu`."""
    return _corpus_score(CHRF(), hypotheses, references)


def _corpus_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    _check("hypotheses", hypotheses, "references", references)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return float(score), str(metric.get_signature())


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of hypotheses that equal their reference, blanks at both ends aside.

    Raises:
      ValueError: no sentences, or not one reference for each hypothesis.
    """
    _check("hypotheses", hypotheses, "references", references)
    pairs = zip(hypotheses, references, strict=True)
    return sum(h.strip() == r.strip() for h, r in pairs) / len(hypotheses)


def pronoun_accuracy(hypotheses: Sequence[str], pronouns: Sequence[str]) -> float:
    """Fraction of the sentences with a pronoun whose hypothesis has that pronoun and no other.

    Counted are `PRONOUNS` anywhere in the hypothesis, in either case: where the embedded corpus has
    an "it", its pronoun is the only one ("Das Tier überquerte die Straße nicht , weil es zu müde
    war ."). So another pronoun, two (the same one twice, too) and none are all wrong.

    Args:
      pronouns: the one that each hypothesis should have; sentences with "" do not count.

    Raises:
      ValueError: no sentence has a pronoun, or not one entry for each hypothesis.
    """
    _check("hypotheses", hypotheses, "pronouns", pronouns)
    pairs = [(h, p) for h, p in zip(hypotheses, pronouns, strict=True) if p]
    if not pairs:
        raise ValueError("no pronoun accuracy: none of the sentences has a pronoun")
    return sum(_pronouns(h) == [p.lower()] for h, p in pairs) / len(pairs)


def _pronouns(sentence: str) -> list[str]:
    return [word for word in re.findall(r"\w+", sentence.lower()) if word in PRONOUNS]


def accuracy(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Fraction of labels that are right.

    Raises:
      ValueError: no labels, or not one expected for each that is predicted.
    """
    from sklearn.metrics import accuracy_score

    _check("labels", predicted, "expected labels", expected)
    return float(accuracy_score(expected, predicted))


def f1(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Macro-averaged F1, 0 to 1: the mean over all labels that are predicted or expected.

    A label that is only expected, or only predicted, has F1 0. Raises as `accuracy`.
    """
    from sklearn.metrics import f1_score

    _check("labels", predicted, "expected labels", expected)
    labels = sorted({*predicted, *expected} - {NOTHING})
    return float(f1_score(expected, predicted, labels=labels, average="macro"))


def matthews(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Matthews correlation of labels, -1 to 1 (of several classes: Gorodkin 2004, R_K).

    0 where all that is predicted, or all that is expected, is one label. Raises as `accuracy`.
    """
    from sklearn.metrics import matthews_corrcoef

    _check("labels", predicted, "expected labels", expected)
    if len({*predicted, *expected}) == 1:
        return 0.0  # scikit-learn says so, too, but warns
    return float(matthews_corrcoef(expected, predicted))


def is_span_tag(tag: str) -> bool:
    """Whether it is a tag of the BIO scheme: O, B-x or I-x."""
    return tag == "O" or tag.startswith(("B-", "I-"))


def span_f1(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> float:
    """F1 of whole spans over all sentences, 0 to 1, counted as conlleval (CoNLL-2000) does.

    Tags are O, B-x and I-x. An I-x that does not continue a span of x begins one. 0 where there
    are no spans at all.

    Raises:
      ValueError: no sentences, not one of `expected` for each of `predicted` with as many tags, or
        a tag of another scheme.
    """
    from seqeval.metrics import f1_score

    _check("sentences", predicted, "expected sentences", expected)
    for ours, theirs in zip(predicted, expected, strict=True):
        if len(ours) != len(theirs):
            raise ValueError(f"a sentence of {len(theirs)} tags has {len(ours)} predicted ones")
        for tag in (*ours, *theirs):
            if not is_span_tag(tag):
                raise ValueError(f"no span F1 with the tag {tag!r}: expected O, B-x or I-x")
    as_lists = [[list(tags) for tags in sentences] for sentences in (expected, predicted)]
    return float(f1_score(*as_lists, zero_division=0))  # pyright: ignore[reportArgumentType]


def word_perplexity(total_nats: float, texts: Sequence[str]) -> float:
    """Perplexity a word of what was scored in any other units, as subwords or characters.

    Words are divided by blanks, and each line end counts as one (<eos>), as in the published counts
    of WikiText-2 (Merity et al. 2016). The end of a text ends its last line. Infinite where it
    overflows.

    Args:
      total_nats: -log p of all the texts, their ends included.

    Raises:
      ValueError: there are no words.
    """
    words = sum(len(text.split()) + _line_ends(text) for text in texts)
    if not words:
        raise ValueError("no perplexity a word of an empty list of texts")
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(total_nats) / words))


def _line_ends(text: str) -> int:
    return text.removesuffix("\n").count("\n") + 1


def _check(name: str, scored: Sequence[Any], expected_name: str, expected: Sequence[Any]) -> None:
    if len(scored) != len(expected):
        raise ValueError(f"{len(scored)} {name}, but {len(expected)} {expected_name}")
    if not scored:
        raise ValueError(f"no score of an empty list of {name}")
