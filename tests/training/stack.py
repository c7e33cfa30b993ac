"""Parameters of a stack of layers, their roles and gradients, and what steps them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests import defaults
from transformer_jax.models.family import Role

BETA1, BETA2, EPSILON, RATE = 0.9, 0.98, 1e-9, 0.01

L, D, H, K, V = 2, 8, 3, 4, 7

# Of the parameters below, those of layers with their number.
ROLES = {
    "encoder/self_attention/query": Role((1, 2), True, True),
    "encoder/self_attention/output": Role((2, 1), True, True),
    "encoder/self_attention/query_bias": Role(None, False, True),
    "encoder/self_attention/vector": Role(None, True, True),
    "encoder/feed_forward/up": Role((1, 1), True, True),
    "encoder/feed_forward/down": Role((1, 1), True, True),
    "encoder/norm/scale": Role(None, False, True),
    "embedding/table": Role((1, 1), True, False),
    "output_projection/kernel": Role((1, 1), True, False),
}
ROLES = {name: role._replace(shape=(L,) * role.stacked) for name, role in ROLES.items()}

# The axes of one layer that are inputs and outputs of its matrix, as the einsums have them.
AXES = {
    "query": ((0,), (1, 2)),
    "output": ((0, 1), (2,)),
    "up": ((0,), (1,)),
    "down": ((0,), (1,)),
}


def rising(count):
    return RATE * (count + 1)


def make_optimizer(name, schedule=rising, roles=lambda: ROLES, **changes):
    settings = {"learning_rate": RATE, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON} | changes
    return defaults.make_optimizer(name, schedule, roles, **settings)


def run(transform, params, gradients) -> Any:
    def step(reached, gradient):
        params, state = reached
        updates, state = transform.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def train(params, gradients):
        return jax.lax.scan(step, (params, transform.init(params)), gradients)[0][0]

    return train(params, jax.tree.map(lambda *steps: np.stack(steps), *gradients))


def first_update(transform, params, gradient) -> Any:
    @jax.jit
    def update(params, gradient):
        return transform.update(gradient, transform.init(params), params)

    return jax.device_get(update(params, gradient)[0])


def state_size(transform, params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(transform.init, params)))


def make_stack(d_model=D, head_dim=K, steps=3) -> tuple[Any, Any]:
    """Parameters of a stack of L layers and of a table, and gradients."""
    rng = np.random.default_rng(1)
    inward, outward = (d_model, H, head_dim), (H, head_dim, d_model)
    shapes = {
        "encoder": {
            "self_attention": {
                "query": (L, *inward),
                "output": (L, *outward),
                "query_bias": (L, *inward[1:]),
                "vector": (L, *inward[1:]),
            },
            "feed_forward": {
                "up": (L, d_model, 2 * d_model),
                "down": (L, 2 * d_model, d_model),
            },
            "norm": {"scale": (L, d_model)},
        },
        "embedding": {"table": (V, d_model)},
        "output_projection": {"kernel": (d_model, V)},
    }

    def draw(size):
        def normal(shape):
            return jnp.asarray(rng.normal(size=shape) * size, jnp.float32)

        return jax.tree.map(normal, shapes, is_leaf=lambda node: isinstance(node, tuple))

    return draw(0.5), [draw(0.1) for _ in range(steps)]


def at(path, tree):
    return functools.reduce(lambda node, key: node[key.key], path, tree)


def adam_direction(m_hat, v_hat, t):
    return m_hat / (np.sqrt(v_hat) + EPSILON)
