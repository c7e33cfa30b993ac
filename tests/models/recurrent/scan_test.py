"""Gradients through the scans over time equal those of plain ones, whatever is computed again."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.tiny import assert_close
from transformer_jax.models.layers.stack import REMAT
from transformer_jax.models.recurrent.scan import multiplier, scan

LENGTH, ROWS, WIDTH = 6, 3, 4


def step(multiply, constants, carry, x):
    """Two products, one of which depends on the other, and a reset."""
    carry = jnp.where(x["start"][:, None], 0.0, carry)
    hidden = jnp.tanh(multiply("up", carry) + constants["bias"][None])
    carry = jnp.sin(multiply("down", hidden) + x["in"])
    return carry, (carry, hidden)


def plain(kernels, constants, carry, inputs, reverse):
    multiply = multiplier(kernels, jnp.dtype("float32"))
    body = functools.partial(step, multiply, constants)
    return jax.lax.scan(body, carry, inputs, reverse=reverse)


@pytest.mark.parametrize(("remat", "reverse"), [*[(name, False) for name in REMAT], ("none", True)])
def test_a_scan_and_its_gradients_are_those_of_a_plain_one(remat, reverse):
    generator = np.random.default_rng(0)

    def draw(*size):
        return jnp.asarray(generator.normal(size=size), jnp.float32)

    kernels = {"up": draw(WIDTH, 10), "down": draw(10, WIDTH)}
    constants, carry = {"bias": draw(10)}, draw(ROWS, WIDTH)
    inputs = {"in": draw(LENGTH, ROWS, WIDTH), "start": generator.random((LENGTH, ROWS)) < 0.3}
    ours = functools.partial(scan, step, dtype=jnp.dtype("float32"), remat=remat, reverse=reverse)

    def loss(function, kernels, constants, carry, x):
        out = function(kernels, constants, carry, {**inputs, "in": x})
        return sum(jnp.sum(jnp.cos(3 * leaf)) for leaf in jax.tree.leaves(out))

    arguments = kernels, constants, carry, inputs["in"]
    expected, outputs = (
        jax.jit(jax.value_and_grad(functools.partial(loss, function), argnums=(0, 1, 2, 3)))(
            *arguments
        )
        for function in (functools.partial(plain, reverse=reverse), ours)
    )
    jax.tree.map(assert_close, outputs, expected)
