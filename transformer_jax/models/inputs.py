"""How a batch becomes vectors: INPUTS is the list of the ways, `config.inputs` names one.

A row reads the columns of its own, has parameters of its own, and says which vectors belong to one
text. All that follows (positions, dropout, masks, heads) is the same for every row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn

from transformer_jax.models.family import Batch
from transformer_jax.models.layers.embeddings import TokenTable
from transformer_jax.models.layers.stems import PatchEmbedding
from transformer_jax.models.stacks import Vectors


class Input(NamedTuple):
    """One row.

    Attributes:
      module: (config, name=) -> the module that has the parameters, named so in the model.
      read: (module, batch) -> the vectors of the batch's inputs.
    """

    module: Callable[..., nn.Module]
    read: Callable[[Any, Batch], Vectors]


def _look_up(table: TokenTable, batch: Batch) -> Vectors:
    x = table.embed(batch["inputs"])
    return Vectors(x, batch["inputs_segment_ids"], batch["inputs_positions"])


def _embed_patches(embedding: PatchEmbedding, batch: Batch) -> Vectors:
    segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
    x = embedding(batch["inputs"], batch["grid"], segments, positions)
    return Vectors(x, segments, positions, batch["grid"])


INPUTS = {
    "tokens": Input(TokenTable, _look_up),
    "patches": Input(PatchEmbedding, _embed_patches),
}
