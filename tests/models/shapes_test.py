"""The architectures serve whatever inputs there are."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models import FAMILIES
from transformer_jax.models.inputs import INPUTS, Input
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.stacks import Vectors


class Kernel(nn.Module):
    """Multiplies vectors."""

    config: Any

    @nn.compact
    def __call__(self, x):
        init, size = nn.initializers.normal(), (self.config.vocab_size, self.config.d_model)
        return x @ parameter(self, "kernel", init, size, ("vocab", "embed"), matrix=(1, 1))


@pytest.mark.parametrize(("shape", "tied"), [("encoder_decoder", "decoder"), ("tags", "none")])
def test_a_batch_may_become_vectors_in_another_way(monkeypatch, shape, tied):
    """Columns of floats, with a kernel of their own, in place of token ids and a table."""
    row = Input(
        module=Kernel,
        read=lambda module, batch: Vectors(
            module(batch["pixels"]), batch["inputs_segment_ids"], batch["inputs_positions"]
        ),
    )
    monkeypatch.setitem(INPUTS, "vectors", row)
    config = tiny.config(**tiny.SHAPES[shape], tied_embeddings=tied)
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    expected = tiny.apply_function(config)(params, batch)
    other = dataclasses.replace(config, inputs="vectors")
    name = "source_embedding" if shape == "encoder_decoder" else "embedding"
    table = params[name]["table"] * config.multipliers.embedding
    pixels = jax.nn.one_hot(batch.pop("inputs"), config.vocab_size)
    model: Any = FAMILIES["transformer"].model(other)
    found = jax.jit(functools.partial(model.apply, deterministic=True))(
        {"params": params | {name: {"kernel": table}}}, batch | {"pixels": pixels}
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
