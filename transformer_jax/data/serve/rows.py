"""Rows of a batch: several examples packed into each, or one padded to a length."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import grain.experimental
import numpy as np

from transformer_jax.data.prepare.recipe import Batch, Column, Draw
from transformer_jax.data.prepare.tokenizer import PAD_ID

# Rows that a stream fills side by side before it yields them: more rows leave less padding, fewer
# are packed anew when a run resumes.
PACKING_BINS = 32


def batched_rows(
    examples: grain.MapDataset,
    columns: Mapping[str, Column],
    lengths: Mapping[str, int],
    *,
    rows: int,
    packing: bool,
    seed: int,
    draw: Draw | None,
    draw_seed: int,
) -> grain.IterDataset:
    """One stream: batches of `rows` rows, packed or padded to `lengths`, with what is drawn."""
    # Files in use are in the page cache: threads that read ahead cost more than that reading (four
    # leave 0.56 of 0.83 million tokens a second), though they help on a cold disk (0.34, not 0.2).
    stream = examples.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if packing:
        packed = grain.experimental.FirstFitPackIterDataset(
            stream,
            length_struct=dict(lengths),
            num_packing_bins=PACKING_BINS,
            seed=seed,
            meta_features=[name for name, column in columns.items() if column.along],
        )
        batches = packed.batch(rows)
    else:
        padded = functools.partial(pad, columns=columns, lengths=lengths)
        batches = stream.batch(rows, batch_fn=padded)
    # Whole batches at a time: to seed a generator for each example would double the costs.
    return batches.random_map(draw, seed=draw_seed) if draw else batches


def pad(
    examples: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Column],
    lengths: Mapping[str, int],
) -> Batch:
    """One example a row, padded to `lengths`, with segment ids (1) and positions.

    columns: of those in `lengths` that are missing here, a row holds token ids.
    """
    batch = {}
    for name, length in lengths.items():
        column = columns.get(name, Column("source"))
        rows = [column.array(example[name]) for example in examples]
        real = np.arange(length) < np.array([len(row) for row in rows])[:, None]
        values = np.full((*real.shape, *column.shape), PAD_ID, column.dtype)
        values[real] = np.concatenate(rows)
        positions = np.where(real, np.arange(length), 0).astype(np.int32)
        parts = (values, real.astype(np.int32), positions)
        batch |= zip(column.keys(name), parts, strict=False)
    return batch
