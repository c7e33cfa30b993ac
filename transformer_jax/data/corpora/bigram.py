"""A synthetic language of known entropy: words of a bigram chain, then a copy of them.

A piece is 16 words, each drawn given the one before, and the same 16 words again. The first half
asks for the word before, the second half for the word 16 places back. A model that learns only how
frequent words are stays at `unigram_entropy()` nats per word; none gets below `entropy()`.

A split is one text of such pieces, so that cutting it every 32 tokens gives the pieces back. The
text lacks its last word: the end-of-sentence token, which ends every text, takes its place.
"""

import string
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

WORDS = string.ascii_letters[:32]
HALF = 16  # words that are drawn, and then copied
SPLITS = {"train": 50_000, "validation": 1_000, "test": 1_000}  # pieces

_SEED = 4  # its transitions leave the stationary distribution broad: 3.28 nats of ln 32 = 3.47
_ENTROPY_RATE = 1.5  # nats per word, to which the transitions are sharpened


class Chain(NamedTuple):
    """Probabilities of the next word, with a row per word before it, and of a word anywhere."""

    transitions: Float64[np.ndarray, "V V"]
    stationary: Float64[np.ndarray, " V"]


@cache
def chain() -> Chain:
    """Softmax of normal logits over a temperature, which bisection finds: entropy rises with it."""
    logits = np.random.default_rng(_SEED).standard_normal((len(WORDS), len(WORDS)))
    low, high = 0.1, 1.0
    for _ in range(50):  # halvings, down to the precision of float64
        temperature = (low + high) / 2
        if rate(_chain(logits / temperature)) < _ENTROPY_RATE:
            low = temperature
        else:
            high = temperature
    return _chain(logits / low)


def _chain(logits: Float64[np.ndarray, "V V"]) -> Chain:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    transitions = weights / weights.sum(axis=1, keepdims=True)
    # p = p P and sum(p) = 1 together: p (I - P + 1) = 1, with a 1 in each place.
    size = len(transitions)
    return Chain(transitions, np.linalg.solve((np.eye(size) - transitions + 1).T, np.ones(size)))


def rate(chain: Chain) -> float:
    """Nats per drawn word, given those before it."""
    return float(chain.stationary @ _entropy(chain.transitions))


def _entropy(probabilities: Float64[np.ndarray, "*rows V"]) -> Float64[np.ndarray, "*rows"]:
    return -np.sum(probabilities * np.log(probabilities), axis=-1)


def unigram_entropy() -> float:
    """Nats per word, given nothing: the loss of a model that knows the frequencies alone."""
    return float(_entropy(chain().stationary))


def entropy() -> float:
    """Nats per word of a whole piece, about 0.81: the least expected loss of any model.

    The first word comes from the stationary distribution, each of the next 15 from the one before
    it, and the copy is certain.
    """
    return (unigram_entropy() + (HALF - 1) * rate(chain())) / (2 * HALF)


def text(split: str) -> str:
    """The pieces of one of SPLITS; always the same."""
    rng, count = np.random.default_rng([_SEED, list(SPLITS).index(split)]), SPLITS[split]
    # The last bound, the sum of all probabilities, is left out: rounding may put it below a draw.
    bounds = np.cumsum(np.vstack(chain()), axis=1)[:, :-1]
    words = [np.full(count, len(WORDS))]  # the row of the stationary distribution
    for draws in rng.random((HALF, count)):
        words.append(np.sum(draws[:, None] >= bounds[words[-1]], axis=1))
    half = np.stack(words[1:], axis=1)
    return joined(np.concatenate([half, half], axis=1), WORDS)


def joined(pieces: Int64[np.ndarray, "B T"], words: Sequence[str]) -> str:
    """Pieces of the numbers of words as a text, without the last word (see above)."""
    return " ".join(np.array(list(words))[pieces.ravel()[:-1]].tolist())
