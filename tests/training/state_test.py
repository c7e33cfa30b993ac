"""The first state and its abstract twin, of two parameters."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.training.tiny import make_states
from transformer_jax.training.state import split_key

KEY, BATCH = jax.random.key(0), {"inputs": jnp.zeros((2, 3), jnp.int32)}


def init(key, batch):
    """A parameter in a box with its logical axes, as Linen makes one, and a parameter in none."""
    table = nn.with_logical_partitioning(jax.random.normal, ("vocab", "embed"))(key, (11, 4))
    return {"table": table, "bias": jnp.zeros(4)}


def states(init=init, ema=False):
    metrics = "loss", "gradient_norm"
    return make_states(init=init, optimizer=optax.adam(0.1), metrics=metrics, ema=ema)


def test_the_moving_average_begins_as_the_parameters_with_buffers_of_its_own():
    """And it is what is evaluated, where there is one."""
    state, without = (states(ema=ema).create(KEY, BATCH) for ema in (True, False))
    jax.tree.map(np.testing.assert_array_equal, state.ema_params, state.params)
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(buffers)) == len(buffers)
    assert state.evaluated is state.ema_params
    assert without.ema_params is None and without.evaluated is without.params


@pytest.mark.parametrize("ema", [False, True])
def test_abstract_has_the_shapes_and_types_of_the_real_state(ema):
    maker = states(ema=ema)
    state, abstract = maker.create(KEY, BATCH), maker.abstract(KEY, BATCH)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    described = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(abstract)]
    assert described == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(abstract))


def test_the_key_decides_parameters_and_dropout_by_keys_of_their_own():
    one, again, other = (states().create(jax.random.key(seed), BATCH) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one.params, again.params)
    assert one.rng == again.rng
    assert one.rng != other.rng
    assert not np.array_equal(one.params["table"], other.params["table"])

    state = states(lambda key, _: {"key": jax.random.normal(key)}).create(KEY, BATCH)
    init_key, rng = split_key(KEY)
    assert state.params["key"] == jax.random.normal(init_key) and state.rng == rng
    keys = [jax.random.key_data(key) for key in (init_key, rng, KEY)]
    assert len({tuple(np.asarray(data)) for data in keys}) == 3
