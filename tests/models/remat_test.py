"""Recomputing changes what is kept for the backward pass, and nothing else; so does depth."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.inspection.flops import product_flops
from transformer_jax.models.layers.stack import REMAT

DROPOUT = dict(dropout_rate=0.2, attention_dropout_rate=0.2)
# Deep and narrow; of one stack, since a second one would be compiled for as long again.
DEEP = dict(architecture="decoder_only", num_decoder_layers=60, residual="admin")


def gradient(config):
    """(params, batch, key) -> the gradient of the mean square of the logits in training mode."""
    model = tiny.model(config)

    def loss(params, batch, key):
        rngs = {"dropout": key}
        logits: Any = model.apply({"params": params}, batch, deterministic=False, rngs=rngs)
        return jnp.mean(jnp.square(logits))

    return jax.grad(loss)


def shapes(config):
    """The arguments of such a gradient."""
    batch = tiny.read_by(config, tiny.packed_batch())
    params = tiny.nn.unbox(tiny.abstract_parameters(config))
    return params, batch, jax.random.key(0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("plain", "policies"),
    [
        (
            tiny.config("admin", architecture="decoder_only", attention_gate="head", **DROPOUT),
            [*REMAT][1:],
        ),
        (tiny.recurrent("lstm", "decoder_only", num_decoder_layers=1, dropout_rate=0.2), ["full"]),
    ],
)
def test_draws_dropout_and_gradients_are_the_same(plain, policies):
    def draw(config):
        init = functools.partial(tiny.family_of(config).init, tiny.model(config))
        return tiny.nn.unbox(jax.jit(init)(key, batch))

    batch, key = tiny.read_by(plain, tiny.packed_batch()), jax.random.key(0)
    params, again = draw(plain), draw(dataclasses.replace(plain, remat="full"))
    jax.tree.map(np.testing.assert_array_equal, again, params)
    expected = jax.jit(gradient(plain))(params, batch, key)
    for remat in policies:
        gradients = jax.jit(gradient(dataclasses.replace(plain, remat=remat)))(params, batch, key)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6, err_msg=remat)
        jax.tree.map(close, gradients, expected)


@pytest.mark.long
def test_recomputing_at_least_halves_the_memory_of_a_deep_model():
    def temporaries(remat):
        config = tiny.config(**DEEP, **DROPOUT, remat=remat)
        memory = jax.jit(gradient(config)).lower(*shapes(config)).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    everything = temporaries("none")
    assert temporaries("full") < temporaries("dots") < everything / 2


@pytest.mark.parametrize(("activation", "policies"), [("swiglu", [*REMAT][1:]), ("gelu", ["full"])])
def test_each_policy_computes_what_it_does_not_keep_again(activation, policies):
    """So many products: of hidden layers, of queries, keys and values, of attention's outputs."""
    config = tiny.config("pre_ln", **tiny.SHAPES["decoder_only"], activation=activation)
    arguments = shapes(config)

    def products(remat):
        changed = dataclasses.replace(config, remat=remat)
        return product_flops(jax.jit(gradient(changed)).trace(*arguments))

    rows, length = arguments[1]["targets"].shape
    layers = 2 * rows * length * config.num_decoder_layers
    inner = config.num_heads * config.head_dim
    scores = layers * length * inner  # of plain attention, which no policy keeps
    hidden = (2 if activation == "swiglu" else 1) * layers * config.d_model * config.d_ff
    projection = layers * config.d_model * inner
    least = products("none")
    again = {"dots": scores}
    again["inward"] = again["dots"] + projection
    again["hidden"] = again["inward"] + 3 * projection
    again["full"] = again["hidden"] + hidden + scores
    flops = {name: products(name) - least for name in policies}
    assert flops == {name: again[name] for name in policies}


@pytest.mark.parametrize(("remat", "shape"), [("none", "masked_tokens"), ("full", "decoder_only")])
def test_the_program_does_not_grow_with_depth(remat, shape):
    def lines(layers):
        sizes = dict(num_encoder_layers=layers, num_decoder_layers=layers)
        changes = sizes | DROPOUT | tiny.SHAPES[shape]
        config = tiny.config("admin", **changes, remat=remat)
        return len(str(jax.make_jaxpr(gradient(config))(*shapes(config))).splitlines())

    assert lines(60) <= 1.3 * lines(6)
