"""A tiny model to train: next-token prediction from one table and one kernel."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tests.defaults import loss_settings, optimizer_settings, train_settings
from transformer_jax.devices.mesh import make_mesh
from transformer_jax.models.family import Outputs, Role
from transformer_jax.training import cross_entropy, losses, optimizer, state, step
from transformer_jax.training.schedule import make_schedule

B, T, V, D = 4, 6, 9, 5


def make_loss(function, totals=None):
    return losses.Loss(function, totals, losses.means_of_tokens, loss_settings())


LOSS = make_loss(losses.next_token_loss)
METRICS = (*cross_entropy.METRICS, "gradient_norm")
OF_OPTIMIZER = optimizer_settings(
    name="adamw",
    schedule="inverse_sqrt",
    learning_rate=0.05,
    warmup_steps=3,
    epsilon=1e-3,  # large, so that rounding of a zero gradient makes no step
    weight_decay=0.01,
    clip_norm=1.0,
)
SCHEDULE = make_schedule(OF_OPTIMIZER)
MESH = make_mesh((1, 1, 1, 1), jax.devices())
ROLES = {
    "table": Role((1, 1), True, False),
    "logits/kernel": Role((1, 1), True, False),
    "logits/bias": Role(None, False, False),
}
OPTIMIZER = optimizer.make_optimizer(OF_OPTIMIZER, SCHEDULE, lambda: ROLES)


def init(key, batch):
    table_key, kernel_key = jax.random.split(key)
    return {
        "table": jax.random.normal(table_key, (V, D)),
        "logits": {"kernel": jax.random.normal(kernel_key, (D, V)), "bias": jnp.zeros(V)},
    }


def apply(params, batch, rng, memory, dropout_rate=0.0):
    x = params["table"][batch["inputs"]]
    if dropout_rate:
        x = x * jax.random.bernoulli(rng, 1 - dropout_rate, x.shape)
    logits = x @ params["logits"]["kernel"] + params["logits"]["bias"][None, None]
    return Outputs(logits), memory


def rate(step):
    return 0.05 * min(step / 3, (3 / step) ** 0.5)


with_dropout = functools.partial(apply, dropout_rate=0.5)


def make_batch(n) -> Any:
    """Batch number n; its rows have different numbers of real tokens."""
    rng = np.random.default_rng(n)
    lengths = rng.integers(1, T + 1, size=(B, 1))
    ids = rng.integers(V, size=(B, T)).astype(np.int32)
    segments = (np.arange(T) < lengths).astype(np.int32)
    return {"inputs": ids, "targets": (ids * 2) % V, "targets_segment_ids": segments}


def make_settings(**changes):
    return train_settings(**({"log_every": 3} | changes))


def make_states(**changes):
    settings: dict[str, Any] = dict(init=init, optimizer=OPTIMIZER, metrics=METRICS)
    settings |= dict(ema=False, mesh=MESH)
    return state.StateMaker(**(settings | changes))


@functools.cache
def initial_arrays(ema):
    return to_numpy(make_states(ema=ema).create(jax.random.key(0), make_batch(0)))


def make_state(ema=False):
    """A fresh copy each time: the step takes the state that it is given."""
    return to_device(initial_arrays(ema))


@functools.cache
def make_step(settings, apply=apply, loss=LOSS):
    return compiled_step(make_state(settings.ema_decay > 0), settings, apply=apply, loss=loss)


def compiled_step(like, settings, **changes):
    """The step of states like this one."""
    parts: dict[str, Any] = dict(loss=LOSS, apply=apply, optimizer=OPTIMIZER, schedule=SCHEDULE)
    return step.TrainStep(settings=settings, **(parts | changes)).program(state.layout(like))


def assert_trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(to_numpy(a)), jax.tree.leaves(to_numpy(b)), strict=True):
        np.testing.assert_array_equal(x, y)


def assert_trees_close(a, b, **tolerances):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerances), a, b)


def to_numpy(tree):
    """A copy on the host; of a state with the key as its data."""
    if isinstance(tree, state.State):
        tree = vars(tree) | {"rng": jax.random.key_data(tree.rng)}
    return jax.tree.map(np.array, tree)


def to_device(arrays):
    arrays = jax.tree.map(jnp.array, arrays)
    new_state = state.State(**(arrays | {"rng": jax.random.wrap_key_data(arrays["rng"])}))
    return jax.device_put(new_state, NamedSharding(MESH, PartitionSpec()))


def spoilt(state, field, value):
    """The state with this value in one place of the first array that belongs to the field."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    first = next(i for i, name in enumerate(names) if f".{field}" in name)
    arrays = [leaf for _, leaf in leaves]
    place = (0,) * arrays[first].ndim
    arrays[first] = jax.device_put(arrays[first].at[place].set(value), arrays[first].sharding)
    return jax.tree.unflatten(structure, arrays)
