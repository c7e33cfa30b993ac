"""The architectures serve whatever stacks and inputs there are, and report what layers add."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models import FAMILIES
from transformer_jax.models.family import with_memory
from transformer_jax.models.inputs import INPUTS, Input
from transformer_jax.models.layers.observe import add_sum
from transformer_jax.models.layers.parameter import parameter
from transformer_jax.models.layers.stack import stack
from transformer_jax.models.shapes import model_of
from transformer_jax.models.stacks import Vectors

LAYERS = 3


class Layer(nn.Module):
    """Scales the stream, and says how many tokens it has seen and how large its scale is."""

    @nn.compact
    def __call__(self, x, number, real):
        scale = parameter(self, "scale", nn.initializers.ones, x.shape[-1:], ("embed",))
        add_sum(self, "tokens", jnp.sum(real), jnp.asarray(real.size))
        add_sum(self, "size", jnp.sum(jnp.square(scale)), jnp.ones(()))
        return x * scale[None, None], None


class Toy(nn.Module):
    """An encoder or a decoder of such layers."""

    remat: str

    @nn.compact
    def __call__(self, inputs, encoded=None, past=None, *, deterministic):
        layers = stack(Layer, LAYERS, self.remat)(name="layers")
        x, _ = layers(inputs.x, jnp.arange(LAYERS), inputs.segments > 0)
        return inputs._replace(x=x), None


def toy(config) -> Any:
    return {name: Toy(config.remat, name=name) for name in tiny.stacks(config)}


@pytest.mark.parametrize(
    ("shape", "remat"), [("encoder_decoder", "full"), ("decoder_only", "none"), ("tags", "none")]
)
def test_what_layers_add_comes_with_the_outputs(shape, remat):
    """Added up over the layers of all stacks; a loss may read it."""
    config = tiny.config(**tiny.SHAPES[shape], remat=remat)
    model, batch = model_of(toy)(config), tiny.read_by(config, tiny.packed_batch())
    init = jax.jit(functools.partial(model.init, deterministic=True))
    params = nn.unbox(init(jax.random.key(0), batch)["params"])
    sides = [name for name in ("inputs", "targets") if name in batch]
    segments = [batch[f"{side}_segment_ids"] for side in sides]

    @functools.partial(jax.jit, static_argnames="rng")
    def outputs(params, rng=None):
        return with_memory(model, params, batch, rng, ())[0]

    sums = outputs(params).sums
    tokens = sum(np.array([np.sum(ids > 0), ids.size]) for ids in segments)
    np.testing.assert_array_equal(sums["tokens"], LAYERS * tokens)
    count = LAYERS * len(sides)
    np.testing.assert_array_equal(sums["size"], (count * config.d_model, count))
    gradient = jax.grad(lambda params: outputs(params).sums["size"][0])(params)
    for name in tiny.stacks(config):
        np.testing.assert_array_equal(gradient[name]["layers"]["scale"], 2.0)


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
    logits = jax.jit(functools.partial(model.apply, deterministic=True))(
        {"params": params | {name: {"kernel": table}}}, batch | {"pixels": pixels}
    )
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
