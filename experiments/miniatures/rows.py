"""Four tasks of one skill each, as sources of data: hops, recipes, sums, and a grammar.

Miniatures of those of Allen-Zhu 2025 (2512.17351), by the code of facebookresearch/PhysicsLM4. A
row of words is a text. Where one asks something, its answer stands behind "=". `data.name` gives
the sizes, as "12 4".
"""

import functools
import itertools
import random
import string
from collections.abc import Callable, Iterator

from transformer_jax.data.read.examples import Examples, SourceSettings
from transformer_jax.data.read.sources import TEXTS, Columns, Generated

NAMES = string.ascii_lowercase
QUESTIONS = 3  # of a row at most: of all names, the last answers would be what is left
MODULUS = 7
LEAVES = "123"
SPLITS = {"train": 100_000, "validation": 256}  # rows

_MOST = 4  # dependencies of one, and uses of one

# A grammar: by level and symbol two rules, each the symbols of the next level; the last is leaves.
Grammar = tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]


def depo(rng: random.Random, scored: bool, names: int, hops: int) -> list[str]:
    """Depo: ", x y" for all x of a cycle in any order, where y follows x; then "k x = z" for some
    x, where z follows x after k steps, of 1 to `hops`."""
    cycle = rng.sample(NAMES, _count(rng, scored, names))
    count = len(cycle)
    words = []
    for number in rng.sample(range(count), count):
        words += [",", cycle[number], cycle[(number + 1) % count]]
    for number in rng.sample(range(count), min(count, QUESTIONS)):
        steps = rng.randint(1, hops)
        words += [str(steps), cycle[number], "=", cycle[(number + steps) % count]]
    return words


def brevo(rng: random.Random, scored: bool, names: int) -> list[str]:
    """Brevo: "x y" wherever y rests on x, in any order; "? z =" for the last z, and all that it
    rests on with itself, each behind what it rests on itself."""
    nodes = rng.sample(NAMES, _count(rng, scored, names))
    rests: dict[str, list[str]] = {node: [] for node in nodes}
    uses = dict.fromkeys(nodes, 0)
    for number in range(rng.randint(1, (len(nodes) - 1) // 4 + 1), len(nodes)):
        free = [node for node in nodes[:number] if uses[node] < _MOST]
        rests[nodes[number]] = rng.sample(free, rng.randint(1, min(len(free), _MOST)))
        for node in rests[nodes[number]]:
            uses[node] += 1
    edges = [(below, node) for node in nodes for below in rests[node]]
    rng.shuffle(edges)
    needed = {nodes[-1]}
    for node in reversed(nodes):  # each comes behind all that it rests on
        needed |= {*rests[node]} if node in needed else set()
    answer: list[str] = []
    while remainder := [node for node in nodes if node in needed and node not in answer]:
        answer.append(rng.choice([node for node in remainder if {*rests[node]} <= {*answer}]))
    return [*itertools.chain.from_iterable(edges), "?", nodes[-1], "=", *answer]


def mano(rng: random.Random, scored: bool, operations: int) -> list[str]:
    """Mano: "+ 3 * 2 6 = 1", an expression modulo 7 of +, - and *, the operator first, and its
    value. It has `operations` of them where it is scored, and in training 1 to that: of one and two
    there are so few that nearly all are trained on."""
    words, value = _expression(rng, operations if scored else rng.randint(1, operations))
    return [*words, "=", str(value)]


def lano(rng: random.Random, scored: bool, depth: int) -> list[str]:
    """Lano: a sentence of `grammar`, whose rules are drawn alike."""
    row = [0]
    for level in grammar(depth):
        row = [part for symbol in row for part in rng.choice(level[symbol])]
    return [LEAVES[leaf] for leaf in row]


@functools.cache
def grammar(depth: int) -> Grammar:
    """One symbol, and then levels of three, to the leaves; two rules of each symbol, which have
    two or three symbols that differ. No two rules of a level are alike."""
    rng = random.Random(f"grammar {depth}")
    symbols = range(len(LEAVES))
    rules = [rule for size in (2, 3) for rule in itertools.permutations(symbols, size)]
    levels = []
    for level in range(depth):
        count = len(LEAVES) if level else 1
        sample = rng.sample(rules, 2 * count)
        levels.append(tuple(zip(sample[::2], sample[1::2], strict=True)))
    return tuple(levels)


def _count(rng: random.Random, scored: bool, most: int) -> int:
    """How many names: all where it is scored; in training rather few, so that it begins easily."""
    if not 3 <= most <= len(NAMES):
        raise ValueError(f"data.name asks for {most} names: expected 3 to {len(NAMES)}")
    counts = range(3, most + 1)
    return most if scored else rng.choices(counts, [1 / (n + most**0.5) for n in counts])[0]


def _expression(rng: random.Random, operations: int) -> tuple[list[str], int]:
    if not operations:
        value = rng.randrange(MODULUS)
        return [str(value)], value
    operator, left = rng.choice("+-*"), rng.randrange(operations)
    (a, first), (b, second) = (_expression(rng, n) for n in (left, operations - 1 - left))
    values = {"+": first + second, "-": first - second, "*": first * second}
    return [operator, *a, *b], values[operator] % MODULUS


def _source(row: Callable[..., list[str]], sizes: str) -> dict[Columns, Generated]:
    def read(settings: SourceSettings, splits: tuple[str, ...], _: Columns) -> Iterator[Examples]:
        numbers = settings.name.split()
        if len(numbers) != len(sizes.split()) or not all(map(str.isdecimal, numbers)):
            raise ValueError(
                f"data.name={settings.name!r} of data.source={settings.source!r}: expected numbers "
                f'of {sizes}, as "{" ".join("4" for _ in sizes.split())}"'
            )
        for split in splits:
            if split not in SPLITS:
                raise ValueError(f"no split {split!r}: expected one of {', '.join(SPLITS)}")
            rng = random.Random(f"{settings.source} {split}")
            scored = split != "train"
            rows = (row(rng, scored, *map(int, numbers)) for _ in range(SPLITS[split]))
            yield {"text": [" ".join(words) for words in rows]}

    return {TEXTS: Generated(read, lambda settings: sorted(SPLITS.items()), ("name",))}


SOURCES = {
    "depo": _source(depo, "names hops"),
    "brevo": _source(brevo, "names"),
    "mano": _source(mano, "operations"),
    "lano": _source(lano, "depth"),
}
