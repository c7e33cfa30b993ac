"""Examples that come in by hand: lines to answer, and columns as of a source, as batches."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from transformer_jax.data.prepare import pictures
from transformer_jax.data.prepare.recipe import (
    Batch,
    Column,
    Corrupt,
    Draw,
    Encoding,
    Labels,
    Limits,
    Recipe,
)
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples
from transformer_jax.data.serve.batches import Batches, eval_batches
from transformer_jax.data.settings import DataSettings


def prompts(
    lines: Sequence[Any], settings: DataSettings, encoder: Any, labels: Labels, *, batch_size: int
) -> Batches:
    """Batches of lines as the model reads them, with their numbers. Too long lines are cut."""
    recipe = settings.recipe
    lines = _prefixed(lines, settings)
    rows, too_long = recipe.prompt(lines, encoder, labels, settings.limits("truncate"))
    _warn(too_long)
    examples = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
    columns = {name: recipe.columns.get(name, Column("source")) for name in rows}
    return eval_batches([examples], columns, batch_size=batch_size, most=settings.max_prompt_length)


def batch(
    columns: Sequence[Sequence[Any]],
    settings: DataSettings,
    encoder: Any,
    labels: Labels,
    *,
    draw: Draw | None,
    corrupt: Corrupt | None,
) -> Batch:
    """Examples as one batch, a row each, in their order. Too long ones are cut.

    columns: all that the recipe reads, or the first alone: then lines to answer. An image is a path
      or its pixels, uint8 of (rows, columns) or (rows, columns, 3).

    Raises:
      ValueError: for another number of columns, columns of different lengths, no examples, or a
        document without a token.
    """
    recipe = settings.recipe
    reads, counts = recipe.reads, [len(column) for column in columns]
    if len(columns) not in (1, len(reads)):
        raise ValueError(
            f"task.name={recipe.name!r} reads {', '.join(reads)}, and {len(columns)} columns are "
            "given: give them all, or the first alone"
        )
    if len({*counts}) > 1 or not counts[0]:
        raise ValueError(
            f"the columns {', '.join(reads[: len(counts)])} have {', '.join(map(str, counts))} "
            "examples: give as many in each, and at least one"
        )
    if len(columns) < len(reads):
        batches = prompts(columns[0], settings, encoder, labels, batch_size=counts[0])
    else:
        first, *others = columns
        first = pictures.by_hand(first) if recipe.reads_images else _prefixed(first, settings)
        examples = dict(zip(reads, map(list, (first, *others)), strict=True))
        encode = functools.partial(_first_pieces, recipe) if recipe.documents else recipe.encode
        encoded, too_long = encode(examples, encoder, labels, settings.limits("truncate"))
        _warn(too_long)
        rows = [
            {name: recipe.stored[name].array(row) for name, row in zip(encoded, cells, strict=True)}
            for cells in zip(*encoded.values(), strict=True)
        ]
        batches = eval_batches(
            [rows], recipe.columns, batch_size=len(rows), draw=draw, corrupt=corrupt
        )
    ((arrays, numbers),) = batches
    return {name: values[np.argsort(numbers)] for name, values in arrays.items()}


def _first_pieces(
    recipe: Recipe, examples: Examples, encoder: Any, labels: Labels, limits: Limits
) -> Encoding:
    """Of each document its first piece, where `encode` has all; and which ones had more."""
    ((name, texts),) = examples.items()
    each = [recipe.encode({name: [text]}, encoder, labels, limits)[0] for text in texts]
    (column,) = recipe.stored
    rows = [columns[column] for columns in each]
    for text, row in zip(texts, rows, strict=True):
        if not row:
            raise ValueError(f"there is no token in the text {text!r}: leave it out")
    return {column: [row[0] for row in rows]}, [n for n, row in enumerate(rows) if len(row) > 1]


def _warn(too_long: Sequence[int]) -> None:
    if too_long:
        logging.warning("%d lines are too long and were cut off", len(too_long))


def _prefixed(lines: Sequence[Any], settings: DataSettings) -> Sequence[Any]:
    """Sources behind data.prefix, as `sources.read` gives them."""
    if settings.recipe.reads != sources.PAIRS or settings.parts:
        return lines
    return [settings.source.prefix + line for line in lines]
