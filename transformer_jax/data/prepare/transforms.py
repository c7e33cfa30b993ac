"""From texts to rows of token ids: what several tasks share."""

import itertools
from collections.abc import Iterable, Sequence

from transformer_jax.data.prepare.recipe import Encoding, Labels, Limits, Rows
from transformer_jax.data.prepare.tokenizer import SpecialIds, Tokenizer


def pieces(documents: Iterable[list[int]], length: int) -> Rows:
    """The documents cut into consecutive pieces of `length` tokens, the last ones shorter."""
    return [
        ids[start : start + length] for ids in documents for start in range(0, len(ids), length)
    ]


def numbered(labels: Labels) -> dict[str, int]:
    """The labels by name, counted from 1."""
    return {label: number for number, label in enumerate(labels, 1)}


def label_number(label: str, numbers: dict[str, int]) -> int:
    """The number of a label. Raises ValueError where it is not among them."""
    if label not in numbers:
        raise ValueError(f"the label {label!r} is none of those known: {', '.join(numbers)}")
    return numbers[label]


def between(rows: Rows, most: int, ids: SpecialIds) -> tuple[Rows, list[int]]:
    """The rows between bos and eos, `most` tokens at most, and which were cut at their end."""
    room = most - 2
    too_long = [number for number, row in enumerate(rows) if len(row) > room]
    return [[ids.bos, *row[:room], ids.eos] for row in rows], too_long


def labelled(sentences: Rows, places: Rows, limits: Limits, ids: SpecialIds) -> Encoding:
    """Sentences between bos and eos, with their labels from bos on.

    Args:
        sentences: token ids.
        places: the label, or 0, at bos and at each token.

    Returns:
        "inputs" and "labels", as long; and the numbers of the sentences that were too long.
    """
    room = limits.source - 2
    fits = [len(row) <= room for row in sentences]
    if limits.too_long == "drop":
        sentences, places = (list(itertools.compress(rows, fits)) for rows in (sentences, places))
    inputs, _ = between(sentences, limits.source, ids)
    labels = [[*place[: room + 1], 0] for place in places]
    return {"inputs": inputs, "labels": labels}, [n for n, fit in enumerate(fits) if not fit]


def paired(sources: Rows, targets: Rows, limits: Limits, ids: SpecialIds) -> Encoding:
    """Sources and targets, each with eos and what else stands around it.

    A pair is too long where one of its sides is. A target that is cut does not end there, so it
    has no eos: scores of texts see whole references.

    Returns:
        "inputs" and "targets"; and the numbers of the pairs that were too long.
    """
    targets = [[*ids.target_first, *row] for row in targets]
    room = _room(limits.source, ids)
    fits = [
        len(source) <= room and len(target) < limits.target
        for source, target in zip(sources, targets, strict=True)
    ]
    if limits.too_long == "drop":
        sources, targets = (list(itertools.compress(rows, fits)) for rows in (sources, targets))
    columns = {
        "inputs": _framed(sources, limits.source, ids),
        "targets": [[*row, ids.eos][: limits.target] for row in targets],
    }
    return columns, [number for number, fit in enumerate(fits) if not fit]


def prompt_sources(
    lines: Sequence[str], tokenizer: Tokenizer, labels: Labels, limits: Limits
) -> Encoding:
    """Sources with eos and what else stands around them, cut at their end (a `recipe.Prompt`)."""
    rows, room = tokenizer.encode(lines), _room(limits.source, tokenizer.special)
    too_long = [number for number, ids in enumerate(rows) if len(ids) > room]
    return {"inputs": _framed(rows, limits.source, tokenizer.special)}, too_long


def _room(most: int, ids: SpecialIds) -> int:
    """Tokens of text in a source of so many tokens."""
    return most - 1 - len(ids.source_before) - len(ids.source_after)


def _framed(rows: Rows, most: int, ids: SpecialIds) -> Rows:
    """The rows as sources, `most` tokens at most."""
    before, after = ids.source_before, (ids.eos, *ids.source_after)
    return [[*before, *row[: _room(most, ids)], *after] for row in rows]
