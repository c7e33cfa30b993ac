"""Scores of texts and labels on the host, by well-known libraries.

A text may be right in several ways: it has one reference or more.

scikit-learn, seqeval which is built on it, and rouge-score, which brings NLTK along, are imported
where they are called: that takes as long as importing JAX, and most runs do without them.
"""

import collections
import re
import string
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_jax.data.read.examples import words

# Of each text, all that are right.
References = Sequence[Sequence[str]]
Scores = dict[str, Any]

# sacreBLEU's names: as WMT does it, text that is tokenised already (by blanks), other scripts,
# characters.
BLEU_TOKENIZERS = ("13a", "none", "intl", "char")

# In the place of a label: nothing was predicted here, which is wrong whatever was expected.
NOTHING = ""

# German pronouns of the third person; which one stands for "it" depends on gender and case.
PRONOUNS = frozenset({"er", "sie", "es", "ihn", "ihm", "ihr", "ihnen"})

_ROUGE = ("rouge1", "rouge2", "rougeL")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def bleu(hypotheses: Sequence[str], references: References, tokenizer: str) -> Scores:
    """Corpus BLEU by the first references, with sacreBLEU (Post 2018, arXiv 1804.08771).

    Returns "bleu", 0 to 100, and "bleu_signature". tokenizer: one of `BLEU_TOKENIZERS`.
    """
    # force: text that looks tokenised is meant to (it changes a warning, not the score).
    return _corpus_score("bleu", BLEU(tokenize=tokenizer, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: References) -> Scores:
    """Corpus chrF2 by the first references, with sacreBLEU (Popovic 2015).

    Returns "chrf", 0 to 100, and "chrf_signature".
    """
    return _corpus_score("chrf", CHRF(), hypotheses, references)


def _corpus_score(
    name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: References
) -> Scores:
    firsts = [texts[0] for _, texts in zip(hypotheses, references, strict=True)]
    score = metric.corpus_score(list(hypotheses), [firsts]).score
    return {name: float(score), f"{name}_signature": str(metric.get_signature())}


def exact_match(hypotheses: Sequence[str], references: References) -> Scores:
    """ "exact_match": the fraction that equals a reference, blanks at both ends aside."""
    pairs = zip(hypotheses, references, strict=True)
    matches = (ours.strip() in map(str.strip, texts) for ours, texts in pairs)
    return {"exact_match": _mean(matches)}


def rouge(hypotheses: Sequence[str], references: References) -> Scores:
    """ROUGE-1, ROUGE-2 and ROUGE-L of whole texts (Lin 2004) by Google's rouge-score.

    Words are stemmed (Porter), as by ROUGE-1.5.5 with -m. They are made of a-z and 0-9 alone: what
    other letters divide or make up counts for nothing, so that only English is scored as expected.

    Returns F1, 0 to 1, means over the texts: "rouge1", "rouge2" and "rougeL" with the best of each
    text's references; where some have several, also "rouge1_mean" ... over them; "rouge_signature".
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(_ROUGE, use_stemmer=True)
    # (texts, references) F1 by name
    values: dict[str, list[list[float]]] = {name: [] for name in _ROUGE}
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        scores = [scorer.score(text, hypothesis) for text in texts]
        for name in _ROUGE:
            values[name].append([score[name].fmeasure for score in scores])
    result: Scores = {name: _mean(map(max, rows)) for name, rows in values.items()}
    if any(len(texts) > 1 for texts in references):
        result |= {f"{name}_mean": _mean(map(np.mean, rows)) for name, rows in values.items()}
    version = metadata.version("rouge-score")
    return result | {"rouge_signature": f"rouge-score:{version}|stemmer:yes"}


def squad(hypotheses: Sequence[str], references: References) -> Scores:
    """F1 of words and exact match as SQuAD 1.1 counts them (Rajpurkar et al. 2016).

    Both compare normalised texts (see `normalised`) and take the best of the references. Returns
    "f1" and "squad_exact_match", 0 to 1, means over the texts.
    """
    pairs = list(zip(hypotheses, references, strict=True))
    f1 = (max(word_f1(ours, text) for text in texts) for ours, texts in pairs)
    matches = (normalised(ours) in map(normalised, texts) for ours, texts in pairs)
    return {"f1": _mean(f1), "squad_exact_match": _mean(matches)}


def normalised(text: str) -> str:
    """Lower case, without punctuation (ASCII) and articles, single blanks between words."""
    letters = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", letters).split())


def word_f1(hypothesis: str, reference: str) -> float:
    """F1 of the words of two normalised texts, each as often as it occurs."""
    ours, theirs = normalised(hypothesis).split(), normalised(reference).split()
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


# (hypotheses, references, sacreBLEU's tokenizer) -> scores by name
METRICS: dict[str, Callable[[Sequence[str], References, str], Scores]] = {
    "exact_match": lambda ours, theirs, _: exact_match(ours, theirs),
    "bleu": bleu,
    "chrf": lambda ours, theirs, _: chrf(ours, theirs),
    "rouge": lambda ours, theirs, _: rouge(ours, theirs),
    "squad": lambda ours, theirs, _: squad(ours, theirs),
}


def pronoun_accuracy(hypotheses: Sequence[str], pronouns: Sequence[str]) -> float:
    """Fraction of the sentences with a pronoun whose hypothesis has that pronoun and no other.

    Counted are `PRONOUNS` anywhere in the hypothesis, in either case: where the embedded corpus has
    an "it", its pronoun is the only one ("Das Tier überquerte die Straße nicht , weil es zu müde
    war ."). So another pronoun, two (the same one twice, too) and none are all wrong.

    pronouns: the one that each hypothesis should have; sentences with "" do not count.
    """
    pairs = [(h, p) for h, p in zip(hypotheses, pronouns, strict=True) if p]
    words = (re.findall(r"\w+", hypothesis.lower()) for hypothesis, _ in pairs)
    matches = ([word for word in row if word in PRONOUNS] for row in words)
    return _mean(ours == [p.lower()] for ours, (_, p) in zip(matches, pairs, strict=True))


def label_scores(predicted: Sequence[str], expected: Sequence[str]) -> Scores:
    """Scores of labels: "accuracy", the fraction that is right, and the macro-averaged "f1".

    That is the mean over all labels that are predicted or expected; one that is only expected, or
    only predicted, has 0.
    """
    from sklearn.metrics import accuracy_score, f1_score

    labels = sorted({*predicted, *expected} - {NOTHING})
    f1 = f1_score(expected, predicted, labels=labels, average="macro")
    return {"accuracy": float(accuracy_score(expected, predicted)), "f1": float(f1)}


def matthews(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Matthews correlation of labels, -1 to 1 (of several classes: Gorodkin 2004, R_K).

    0 where all that is predicted, or all that is expected, is one label.
    """
    from sklearn.metrics import matthews_corrcoef

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
    """
    from seqeval.metrics import f1_score

    as_lists = [[list(tags) for tags in sentences] for sentences in (expected, predicted)]
    return float(f1_score(*as_lists, zero_division=0))  # pyright: ignore[reportArgumentType]


def word_perplexity(total_nats: float, texts: Sequence[str]) -> float:
    """Perplexity a word of what was scored in any other units, as subwords or characters.

    Words are those of `words`, and each line end counts as one (<eos>), as in the published counts
    of WikiText-2 (Merity et al. 2016). The end of a text ends its last line. Infinite where it
    overflows.

    total_nats: -log p of all the texts, their ends included.
    """
    count = sum(len(words(text)) + text.removesuffix("\n").count("\n") + 1 for text in texts)
    with np.errstate(over="ignore"):
        return float(np.exp(np.float64(total_nats) / count))


def _mean(values: Iterable[Any]) -> float:
    return float(np.mean(list(values)))
