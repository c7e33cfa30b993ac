"""Scores of texts that may be right in several ways: each has one reference or more.

BLEU and chrF compare with the first reference. rouge-score is imported where it is called, since it
brings NLTK along.
"""

import collections
import re
import string
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from transformer_jax.evaluation import scores as metrics

# Of each text, all that are right.
References = Sequence[Sequence[str]]
Scores = dict[str, Any]

_ROUGE = ("rouge1", "rouge2", "rougeL")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = set(string.punctuation)


def exact_match(hypotheses: Sequence[str], references: References) -> float:
    """Fraction of hypotheses that equal a reference, blanks at both ends aside.

    Raises:
      ValueError: no texts, or one without references.
    """
    _check(hypotheses, references)
    return _mean(
        hypothesis.strip() in [text.strip() for text in texts]
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    )


def rouge(hypotheses: Sequence[str], references: References) -> Scores:
    """ROUGE-1, ROUGE-2 and ROUGE-L of whole texts (Lin 2004) by Google's rouge-score.

    Words are stemmed (Porter), as by ROUGE-1.5.5 with -m. They are made of a-z and 0-9 alone: what
    other letters divide or make up counts for nothing, so that only English is scored as expected.

    Returns:
      F1, 0 to 1, means over the texts: "rouge1", "rouge2" and "rougeL" with the best of each text's
      references; where some have several, also "rouge1_mean" ... over them; "rouge_signature".

    Raises:
      ValueError: as `exact_match`.
    """
    from rouge_score.rouge_scorer import RougeScorer

    _check(hypotheses, references)
    scorer = RougeScorer(_ROUGE, use_stemmer=True)
    # (texts, references) F1 by name
    found: dict[str, list[list[float]]] = {name: [] for name in _ROUGE}
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        scores = [scorer.score(text, hypothesis) for text in texts]
        for name in _ROUGE:
            found[name].append([score[name].fmeasure for score in scores])
    result: Scores = {name: _mean(map(max, rows)) for name, rows in found.items()}
    if any(len(texts) > 1 for texts in references):
        result |= {f"{name}_mean": _mean(map(np.mean, rows)) for name, rows in found.items()}
    version = metadata.version("rouge-score")
    return result | {"rouge_signature": f"rouge-score:{version}|stemmer:yes"}


def squad(hypotheses: Sequence[str], references: References) -> Scores:
    """F1 of words and exact match as SQuAD 1.1 counts them (Rajpurkar et al. 2016).

    Both compare normalised texts (see `normalised`) and take the best of the references.

    Returns:
      "f1" and "squad_exact_match", 0 to 1, means over the texts.

    Raises:
      ValueError: as `exact_match`.
    """
    _check(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    return {
        "f1": _mean(max(word_f1(ours, text) for text in texts) for ours, texts in pairs),
        "squad_exact_match": _mean(
            normalised(ours) in map(normalised, texts) for ours, texts in pairs
        ),
    }


def normalised(text: str) -> str:
    """Lower case, without punctuation (ASCII) and articles, single blanks between words."""
    kept = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def word_f1(hypothesis: str, reference: str) -> float:
    """F1 of the words of two normalised texts, each as often as it occurs."""
    ours, theirs = normalised(hypothesis).split(), normalised(reference).split()
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _bleu(hypotheses: Sequence[str], references: References, tokenizer: str) -> Scores:
    score, signature = metrics.bleu(hypotheses, [texts[0] for texts in references], tokenizer)
    return {"bleu": score, "bleu_signature": signature}


def _chrf(hypotheses: Sequence[str], references: References, tokenizer: str) -> Scores:
    del tokenizer
    score, signature = metrics.chrf(hypotheses, [texts[0] for texts in references])
    return {"chrf": score, "chrf_signature": signature}


# (hypotheses, references, sacreBLEU's tokenizer) -> scores by name
METRICS: dict[str, Callable[[Sequence[str], References, str], Scores]] = {
    # "exact_match": fraction that equals a reference.
    "exact_match": lambda ours, theirs, _: {"exact_match": exact_match(ours, theirs)},
    "bleu": _bleu,
    "chrf": _chrf,
    "rouge": lambda ours, theirs, _: rouge(ours, theirs),
    "squad": lambda ours, theirs, _: squad(ours, theirs),
}


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _check(hypotheses: Sequence[str], references: References) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but references of {len(references)} texts")
    if not hypotheses:
        raise ValueError("no score of an empty list of hypotheses")
    if not all(references):
        raise ValueError("no score of a text without references")
