"""A synthetic language whose loss falls as a known power of the tokens seen: keys with answers.

A piece is 21 pairs. A key is drawn with probability p_k ~ k^-(1 + a), and written as two words,
which a permutation gives it, so that nothing but the pair of them tells which key it is; its answer
is a word drawn from a distribution of the key's own. What is not yet learnt after n pairs are the
keys rarer than 1 / n, whose mass is about n^(-a / (1 + a)): so falls the error, whatever is learnt
of each (Hutter 2021, 2102.04074).

A split is one text of such pieces, as of `bigram`: cut every 63 tokens it gives the pieces back.
The exponent a is `data.name`.
"""

import math
import string
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from transformer_jax.data.corpora.bigram import joined

WORDS = tuple(map("".join, product(string.ascii_letters[:16], repeat=2)))
KEYS = 2**14
LENGTH = 63  # words of a piece: 21 pairs of a key, of two words, and its answer
SPLITS = {"train": 100_000, "validation": 1_000, "test": 1_000}  # pieces

_SEED = 7
_SHARPNESS = 3.0  # deviation of the logits of answers, which leaves about 2 nats of ln 256 = 5.5


class Language(NamedTuple):
    """keys: the probability of each, by its two words, first * V + second.

    answers: the probabilities of each word behind each key.
    """

    keys: Float64[np.ndarray, " K"]
    answers: Float64[np.ndarray, "K V"]


@cache
def language(exponent: float) -> Language:
    """Keys of this exponent a, above 0. Answers, and the words of a rank, are the same for all."""
    rng = np.random.default_rng(_SEED)
    weights = np.exp(_SHARPNESS * rng.standard_normal((KEYS, len(WORDS))))
    keys = np.arange(1, KEYS + 1.0) ** -(1 + exponent)
    keys = rng.permutation(keys / keys.sum())
    return Language(keys, weights / weights.sum(axis=1, keepdims=True))


def text(split: str, exponent: str) -> str:
    """The pieces of one of SPLITS; always the same. Raises ValueError for no exponent above 0."""
    try:
        number = float(exponent)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(
            f"data.name={exponent!r} is no exponent of data.source='zipf': expected a number above "
            "0, as '0.5'"
        )
    keys, answers = language(number)
    rng = np.random.default_rng([_SEED, list(SPLITS).index(split)])
    key = rng.choice(KEYS, size=(SPLITS[split], LENGTH // 3), p=keys)
    # One search for all keys: the bounds of key k are those of a word plus k. The last bound of a
    # key is left out: rounding may put it below a draw.
    bounds = np.cumsum(answers, axis=1)[:, :-1] + np.arange(KEYS)[:, None]
    place = np.searchsorted(bounds.ravel(), key + rng.random(key.shape), side="right")
    answer = place - key * (len(WORDS) - 1)
    words = np.stack([*divmod(key, len(WORDS)), answer], axis=2)
    return joined(words.reshape(len(words), LENGTH), WORDS)
