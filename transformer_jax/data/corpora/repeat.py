"""A synthetic language in which only what came before in the row tells what comes: repeats.

A piece is 64 words: p of them drawn uniformly, the same p again, and so on to its end, where the
period p is drawn for each piece, so that no distance is always right. A model that learns which
words a piece has, but not their order, stays at about ln p nats on words that are repeats; one that
finds the word after the last occurrence of the present one (an induction head: Olsson et al. 2022,
2209.11895) nears 0, which takes two layers of attention. On average a quarter of a piece is drawn,
so that no model gets below ln 64 / 4 = 1.04 nats per word.

A split is one text of such pieces, as of `bigram`: cut every 64 tokens it gives the pieces back.
"""

import string

import numpy as np

from transformer_jax.data.corpora.bigram import joined

WORDS = string.ascii_letters + string.digits + "+/"
LENGTH = 64  # words of a piece
PERIODS = range(8, 25)
SPLITS = {"train": 50_000, "validation": 1_000, "test": 1_000}  # pieces

_SEED = 5


def text(split: str) -> str:
    """The pieces of one of SPLITS; always the same."""
    rng = np.random.default_rng([_SEED, list(SPLITS).index(split)])
    count = SPLITS[split]
    words = rng.integers(len(WORDS), size=(count, LENGTH))
    period = rng.choice(np.array(PERIODS), size=(count, 1))
    return joined(np.take_along_axis(words, np.arange(LENGTH) % period, axis=1), WORDS)
