"""Examples that come in by hand: lines to answer, and columns as of a source, as batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from transformer_jax.data.prepare import pictures
from transformer_jax.data.prepare.recipe import Batch, Corrupt, Draw, Labels
from transformer_jax.data.read import sources
from transformer_jax.data.serve.batches import Batches, eval_batches, prompt_batches
from transformer_jax.data.settings import DataSettings


def prompts(
    lines: Sequence[Any], settings: DataSettings, encoder: Any, labels: Labels, *, batch_size: int
) -> Batches:
    """Batches of lines as the model reads them, with their numbers. Too long lines are cut."""
    recipe = settings.recipe
    lines = _prefixed(lines, settings)
    rows, too_long = recipe.prompt(lines, encoder, labels, settings.limits("truncate"))
    if too_long:
        logging.warning("%d lines are too long and were cut off", len(too_long))
    return prompt_batches(
        rows, recipe.columns, batch_size=batch_size, max_length=settings.max_prompt_length
    )


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
      ValueError: for another number of columns, columns of different lengths, or no examples.
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
        given = dict(zip(reads, map(list, (first, *others)), strict=True))
        encoded, _ = recipe.encode(given, encoder, labels, settings.limits("truncate"))
        rows = [
            {name: recipe.stored[name].array(row) for name, row in zip(encoded, own, strict=True)}
            for own in zip(*encoded.values(), strict=True)
        ]
        batches = eval_batches(
            [rows], recipe.columns, batch_size=len(rows), draw=draw, corrupt=corrupt
        )
    ((made, numbers),) = batches
    return {name: values[np.argsort(numbers)] for name, values in made.items()}


def _prefixed(lines: Sequence[Any], settings: DataSettings) -> Sequence[Any]:
    """Sources behind data.prefix, as `sources.read` gives them."""
    if settings.recipe.reads != sources.PAIRS or settings.parts:
        return lines
    return [settings.source.prefix + line for line in lines]
