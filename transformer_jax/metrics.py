"""Scores on the host: means of sums, and scores of texts, BLEU and chrF by sacreBLEU."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

# German pronouns of the third person; which one stands for "it" depends on gender and case.
PRONOUNS = frozenset({"er", "sie", "es", "ihn", "ihm", "ihr", "ihnen"})


def means(window: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """name -> sum / weight in float64, of (sum, weight) scalars on any device.

    A "token_loss", in nats, brings along its "perplexity" (infinite where it overflows).

    Raises:
      ValueError: a weight is 0, so that there is nothing to take the mean of.
    """
    sums = {name: np.asarray(pair, np.float64) for name, pair in jax.device_get(window).items()}
    empty = [name for name, (_, weight) in sums.items() if weight == 0]
    if empty:
        raise ValueError(f"no mean of {', '.join(empty)}: the weight is 0 (no real tokens)")
    result = {name: float(total / weight) for name, (total, weight) in sums.items()}
    if "token_loss" in result:
        with np.errstate(over="ignore"):
            result["perplexity"] = float(np.exp(result["token_loss"]))
    return result


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
    _check(hypotheses, "references", references)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return float(score), str(metric.get_signature())


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Fraction of hypotheses that equal their reference, blanks at both ends aside.

    Raises:
      ValueError: no sentences, or not one reference for each hypothesis.
    """
    _check(hypotheses, "references", references)
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
    _check(hypotheses, "pronouns", pronouns)
    pairs = [(h, p) for h, p in zip(hypotheses, pronouns, strict=True) if p]
    if not pairs:
        raise ValueError("no pronoun accuracy: none of the sentences has a pronoun")
    return sum(_pronouns(h) == [p.lower()] for h, p in pairs) / len(pairs)


def _pronouns(sentence: str) -> list[str]:
    return [word for word in re.findall(r"\w+", sentence.lower()) if word in PRONOUNS]


def _check(hypotheses: Sequence[str], name: str, expected: Sequence[str]) -> None:
    if len(hypotheses) != len(expected):
        raise ValueError(f"{len(hypotheses)} hypotheses, but {len(expected)} {name}")
    if not hypotheses:
        raise ValueError("no score of an empty list of hypotheses")
