"""The first state, its abstract twin and the parameter table, on a Linen module of two kernels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.devices.mesh import MeshSettings, make_mesh
from transformer_jax.training import state as train_state

METRICS = ("loss", "gradient_norm")
MESH = make_mesh(MeshSettings(1, 1, 1, 1, ""), jax.devices())


class Model(nn.Module):
    @nn.compact
    def __call__(self, batch):
        normal = nn.initializers.normal()
        axes = nn.with_logical_partitioning(normal, ("vocab", "embed"))
        table = self.param("table", axes, (11, 4))
        bias = self.param("bias", normal, (4,))
        return jnp.take(table, batch["inputs"], axis=0) + bias[None, None]  # pyright: ignore


def init(key, batch):
    return Model().init(key, batch)["params"]


def make(function, seed=0, ema=False):
    batch = {"inputs": jnp.zeros((2, 3), jnp.int32)}
    return function(init, optax.adam(0.1), jax.random.key(seed), batch, METRICS, ema=ema, mesh=MESH)


def test_state_starts_at_step_0_with_unboxed_parameters_and_an_empty_window():
    state = make(train_state.create)
    assert state.step == 0
    assert jax.tree.map(jnp.shape, state.params) == {"bias": (4,), "table": (11, 4)}
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    assert state.window == {"loss": (0, 0), "gradient_norm": (0, 0)}
    assert state.recent.shape == (train_state.RECENT,) and jnp.isnan(state.recent).all()


def test_the_moving_average_begins_as_the_parameters_with_buffers_of_its_own():
    state = make(train_state.create, ema=True)
    jax.tree.map(np.testing.assert_array_equal, state.ema_params, state.params)
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(buffers)) == len(buffers)


def test_evaluated_is_the_moving_average_where_there_is_one():
    state = make(train_state.create, ema=True)
    assert state.evaluated is state.ema_params
    state = make(train_state.create)
    assert state.ema_params is None and state.evaluated is state.params


@pytest.mark.parametrize("ema", [False, True])
def test_abstract_has_the_shapes_and_types_of_the_real_state(ema):
    state, abstract = make(train_state.create, ema=ema), make(train_state.abstract, ema=ema)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    described = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(abstract)]
    assert described == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(abstract))


def test_the_key_decides_parameters_and_dropout():
    one, again, other = (make(train_state.create, seed) for seed in (1, 1, 2))
    jax.tree.map(np.testing.assert_array_equal, one.params, again.params)
    assert one.rng == again.rng
    assert one.rng != other.rng
    assert not np.array_equal(one.params["table"], other.params["table"])


def test_parameters_and_dropout_have_keys_of_their_own():
    key = jax.random.key(0)
    batch = {"inputs": jnp.zeros((2, 3), jnp.int32)}

    def record(init_key, batch):
        return {"key": jax.random.key_data(init_key)}

    state = train_state.create(
        *(record, optax.identity(), key, batch, METRICS), ema=False, mesh=MESH
    )
    keys = [state.params["key"], jax.random.key_data(state.rng), jax.random.key_data(key)]
    assert len({tuple(np.asarray(data)) for data in keys}) == 3
    init_key, rng = train_state.split_key(key)
    assert jnp.array_equal(jax.random.key_data(init_key), state.params["key"]) and rng == state.rng


def test_parameter_table_names_path_shape_axes_and_count():
    batch = {"inputs": jnp.zeros((2, 3), jnp.int32)}
    rows = train_state.parameter_table(lambda k, b: {"model": init(k, b)}, jax.random.key(0), batch)
    assert rows == [
        train_state.Parameter("model/bias", (4,), (), 4),
        train_state.Parameter("model/table", (11, 4), ("vocab", "embed"), 44),
    ]
