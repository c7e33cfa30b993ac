"""The embedded corpus: a generated English-German grammar in which "it" must be resolved.

"The animal didn't cross the street because it was too tired ." is "... weil es zu müde war .",
and "... because it was too wide ." is "... weil sie zu breit war .": the adjective decides which
noun "it" refers to, and the German gender of that noun decides the pronoun. Words and punctuation
are separated by single blanks. An English sentence has exactly one German one.

A sentence is a number below `SIZE` (about 350 million): the number selects a pattern, and its
mixed-radix digits fill the pattern's slots. A seeded permutation of the numbers makes the corpus.
"""

from collections.abc import Iterator
from itertools import chain, islice
from math import isqrt, log

import numpy as np

from transformer_jax.data.corpora.grammar.sentences import (
    PATTERNS,
    SITUATIONS,
    STREET_TRIPLES,
    Pattern,
    Sentence,
)

NAME = "english_german_grammar/1.0.0"  # with a version: prepared data are found by it
COUNTS = {"train": 100_000, "validation": 1_000, "test": 2_000}  # examples of the splits
FEATURES = Sentence._fields
SIZE = sum(pattern.size for pattern in PATTERNS)
ROUNDS = 4  # of the permutation's Feistel network
BLOCK = 4096  # indices that are permuted at once


def permute(seed: int, indices: np.ndarray, size: int) -> np.ndarray:
    """A seeded bijection of [0, size): (n,) integers -> (n,) integers.

    A Feistel network whose halves are digits of radix a and b, with a * b just above size. Results
    outside the range go through again (cycle walking; Black and Rogaway, 2002, methods 2 and 3).
    """
    a = isqrt(size)
    b = -(-size // a)
    keys = np.random.SeedSequence(seed).generate_state(2 * ROUNDS, np.uint64)
    numbers = np.array(indices, np.uint64)
    outside = np.arange(len(numbers))
    while len(outside):
        left, right = np.divmod(numbers[outside], np.uint64(b))
        for key in keys.reshape(ROUNDS, 2):
            left = (left + _mix(right + key[0]) % a) % a
            right = (right + _mix(left + key[1]) % b) % b
        numbers[outside] = left * np.uint64(b) + right
        outside = outside[numbers[outside] >= size]
    return numbers.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); products wrap around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def locate(number: int) -> tuple[Pattern, int]:
    """The pattern of sentence `number` of the grammar, and its number among those of the pattern.

    Raises ValueError where there is no such sentence.
    """
    for pattern in PATTERNS:
        if number < pattern.size:
            return pattern, number
        number -= pattern.size
    raise ValueError(f"the numbers of the grammar's sentences end at {SIZE - 1}")


def numbers(seed: int, indices: range) -> Iterator[int]:
    """The sentences at these ascending indices of the seeded order, permuted in blocks.

    A pure function: another index is another sentence.
    """
    for start in range(0, len(indices), BLOCK):
        block = np.asarray(indices[start : start + BLOCK])
        yield from permute(seed, block, SIZE).tolist()


# Parts of the seeded order: splits share no index, hence no sentence.
SPLITS = {
    "train": range(SIZE * 8 // 10),
    "validation": range(SIZE * 8 // 10, SIZE * 9 // 10),
    "test": range(SIZE * 9 // 10, SIZE),
}


def street_sentences() -> list[Sentence]:
    """The two sentences that introductions to attention use: the first ones of their situations."""
    explanation = PATTERNS[0]
    each = explanation.size // len(SITUATIONS)
    return [
        explanation(number * each)
        for number, situation in enumerate(SITUATIONS)
        if situation.triple in STREET_TRIPLES and situation.event.verb.base == "cross"
    ]


def examples(split: str, count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """The first `count` examples of a split.

    Keys: source (English), target (German), tags (one Universal POS tag for each English word),
    and where the sentence has an "it": pronoun (its German one), antecedent (the English
    noun that it refers to) and antecedent_role ("subject" or "object"); elsewhere these are "".

    Training and validation share their triples of subject, object and adjective. The test split
    has the other triples, in sentences with "it", and begins with the two street sentences.
    """
    # Realising takes most of the time, so what the split does not want is not realised.
    of_test = split == "test"
    located = map(locate, numbers(seed, SPLITS[split]))
    corpus = (
        pattern(number) for pattern, number in located if pattern.is_held_out(number) == of_test
    )
    if of_test:
        first = street_sentences()
        corpus = chain(first, (s for s in corpus if s.pronoun and s not in first))
    return (s._asdict() for s in islice(corpus, count))


def entropy() -> float:
    """Nats per sentence of the train or the validation split, about 20.

    This is the logarithm of the number of sentences that are not held out: all are equally likely
    and differ in English. No language model of `source` has a lower expected loss on unseen ones.
    """
    return log(sum(pattern.size - pattern.held_out for pattern in PATTERNS))
