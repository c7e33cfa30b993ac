"""A synthetic language on which attention sinks form within hundreds of steps: bigram-backcopy.

A piece is 64 words of the chain of `bigram`, but after each of its three most frequent words, the
triggers, comes the word before the trigger once more. So a head has something to do after a trigger
alone, and elsewhere has to put its weight where it does no harm (Guo et al. 2024, 2410.13835). The
first word is no trigger; then no trigger follows another, and each has a word before it.

A split is one text of such pieces, as of `bigram`: cut every 64 tokens it gives the pieces back.
"""

from functools import cache

import numpy as np
from jaxtyping import Float64, Int64

from transformer_jax.data.corpora import bigram

WORDS = bigram.WORDS
LENGTH = 64  # words of a piece
SPLITS = bigram.SPLITS

_TRIGGERS = 3
_SEED = 6


@cache
def triggers() -> Int64[np.ndarray, " k"]:
    """The numbers of the words after which the word before them comes."""
    return np.sort(np.argsort(bigram.chain().stationary)[-_TRIGGERS:])


@cache
def _first() -> Float64[np.ndarray, " V"]:
    """Of the first word: as frequent as in the chain, but for triggers."""
    first = bigram.chain().stationary.copy()
    first[triggers()] = 0.0
    return first / first.sum()


def text(split: str) -> str:
    """The pieces of one of SPLITS; always the same."""
    rng = np.random.default_rng([_SEED, list(SPLITS).index(split)])
    bounds = np.cumsum(np.vstack([bigram.chain().transitions, _first()]), axis=1)[:, :-1]
    count = SPLITS[split]
    words = [np.full(count, len(WORDS))]  # the row of first words
    for draws in rng.random((LENGTH, count)):
        samples = np.sum(draws[:, None] >= bounds[words[-1]], axis=1)
        copies = np.isin(words[-1], triggers())
        words.append(np.where(copies, words[-2] if len(words) > 1 else 0, samples))
    return bigram.joined(np.stack(words[1:], axis=1), WORDS)
