"""What is right where several answers are: orders of a recipe, and the next words of a grammar."""

import functools
import operator
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from experiments.miniatures.rows import LEAVES, Grammar

# Of a symbol and a row, the probability that it makes the words from place i on to place j.
_Whole = Float[np.ndarray, "B T+1 T+1"]
# That what it makes begins with these, and v comes next.
_Begun = Float[np.ndarray, "B T+1 T+1 V"]


def is_order(words: Sequence[str]) -> bool:
    """Whether a row of `rows.brevo` ends with a right answer, whichever of several it is."""
    opens = words.index("=")
    query, answer = words[opens - 1], words[opens + 1 :]
    edges = list(zip(words[: opens - 2 : 2], words[1 : opens - 2 : 2], strict=True))
    needed = {query}
    while more := {below for below, node in edges if node in needed} - needed:
        needed |= more
    if sorted(answer) != sorted(needed):
        return False
    place = {node: number for number, node in enumerate(answer)}
    return all(place[below] < place[node] for below, node in edges if node in needed)


def next_words(grammar: Grammar, leaves: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T+1 V+1"]:
    """The probability that a sentence begins as each beginning of a row, and goes on with each
    leaf or, last, with none.

    They add up to the probability of the beginning: 1 of the empty one. leaves: from 0; what is
    no leaf is in no sentence.
    """
    rows, length = leaves.shape
    places, *levels = np.arange(length + 1), *_wholes(grammar, leaves)
    begun = []
    for leaf in range(len(LEAVES)):
        begun.append(np.zeros((rows, length + 1, length + 1, len(LEAVES))))
        begun[leaf][:, places, places, leaf] = 1
    for level, whole in zip(reversed(grammar), levels, strict=False):
        begun = [np.mean([_begun(rule, whole, begun) for rule in rules], axis=0) for rules in level]
    return np.concatenate([begun[0][:, 0], levels[-1][0][:, 0, :, None]], axis=-1)


def _wholes(grammar: Grammar, leaves: Int[np.ndarray, "B T"]) -> list[list[_Whole]]:
    """From the leaves up to the one symbol of the first level, by level and symbol."""
    rows, length = leaves.shape
    places = np.arange(length + 1)
    levels = [[np.zeros((rows, length + 1, length + 1)) for _ in LEAVES]]
    for leaf, one in enumerate(levels[0]):
        one[:, places[:-1], places[1:]] = leaves == leaf
    for level in reversed(grammar):
        below = levels[-1]
        products = [
            [functools.reduce(operator.matmul, [below[part] for part in rule]) for rule in rules]
            for rules in level
        ]
        levels.append([np.mean(terms, axis=0) for terms in products])
    return levels


def _begun(rule: tuple[int, ...], whole: list[_Whole], begun: list[_Begun]) -> _Begun:
    """A rule's first symbol is begun; or it is whole up to a place, and the rest begun there."""
    first, *rest = rule
    if not rest:
        return begun[first]
    after = _begun(tuple(rest), whole, begun)
    later = whole[first] @ after.reshape(*after.shape[:2], -1)
    return begun[first] + later.reshape(after.shape)
