"""The largest curvature, against dense Hessians and spectra that are known."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from tests.defaults import make_optimizer, optimizer_settings
from transformer_jax.inspection import sharpness
from transformer_jax.models.family import Role
from transformer_jax.models.layers.parameter import Share
from transformer_jax.training import optimizer
from transformer_jax.training.update_rules import OPTIMIZERS


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def quadratic(values, seed=0):
    """A symmetric matrix of this spectrum, and its last eigenvector."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values),) * 2))
    matrix = (basis * values) @ basis.T
    return jnp.asarray(matrix, jnp.float32), basis[:, -1]


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-3, 7, 200),
        np.r_[-50.0 * np.ones(5), np.zeros(90), 1.0, 20.0],  # the largest is not the largest size
        np.r_[np.linspace(0, 1, 96), 30.0, 30.5],
        np.array([2.0]),
        np.r_[np.zeros(30), 4.0],  # an invariant space of two vectors
    ],
)
def test_lanczos_finds_the_largest_eigenvalue_of_a_quadratic(values):
    matrix, expected = quadratic(values)
    find = functools.partial(sharpness.lanczos, lambda v: matrix @ v, iterations=40)
    value, vector = jax.jit(find)(draw(len(values), seed=1))
    np.testing.assert_allclose(value, values[-1], rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-4)
    if len(values) < 2 or values[-1] - values[-2] > 5:
        np.testing.assert_allclose(abs(vector @ expected), 1, rtol=1e-3)


@functools.cache
def network():
    """A network of 516 parameters, its loss on 40 examples, and its dense Hessian."""
    params = {"inner": draw(10, 28), "bias": draw(28, seed=2), "outer": draw(28, 8, seed=3) / 5}
    x, y = draw(40, 10, seed=4), draw(40, 8, seed=5)
    params = params | {"last": draw(8, seed=6) * np.ones((), np.float32)}

    def loss(params):
        hidden = jnp.tanh(x @ params["inner"] + params["bias"][None])
        return jnp.mean(jnp.square(hidden @ params["outer"] + params["last"][None] - y))

    flat, restore = ravel_pytree(params)
    return params, loss, np.array(jax.jit(jax.hessian(lambda f: loss(restore(f))))(flat))


def test_what_training_logs_is_of_its_parameters_and_its_optimizer():
    params, loss, dense = network()
    scales = jax.tree.map(lambda leaf: 0.1 + jnp.abs(jnp.sin(7 * leaf)), params)
    flat = np.asarray(ravel_pytree(scales)[0], np.float64) ** -0.5
    measure = functools.partial(sharpness.measure, lambda params: 3 * loss(params), clip_norm=0.0)
    metrics, plain = (jax.jit(measure)(params, tree) for tree in (scales, None))
    assert set(metrics) - set(plain) == {"preconditioned_sharpness"}
    values, vectors = np.linalg.eigh(dense)
    np.testing.assert_allclose(metrics["sharpness"], 3 * values[-1], rtol=1e-3)
    expected = 3 * np.linalg.eigvalsh(flat[:, None] * dense * flat)[-1]
    np.testing.assert_allclose(metrics["preconditioned_sharpness"], expected, rtol=1e-3)
    gradient = ravel_pytree(jax.jit(jax.grad(loss))(params))[0]
    expected = (vectors[:, -1] @ gradient) ** 2 / (gradient @ gradient)
    for measured in (metrics, plain):
        np.testing.assert_allclose(measured["gradient_alignment"], expected, rtol=1e-2)


@pytest.mark.long
def test_clipping_leaves_the_curvature_that_adams_steps_meet():
    """Adam's steps do not change with the scale of all gradients, and so neither does that: here
    they stay what they are, so that P is their size after clipping."""
    params, loss, _ = network()
    gradient = jax.jit(jax.grad(loss))(params)
    norm = float(optax.tree.norm(gradient))
    curvatures = []
    for clip_norm, share in ((0.0, 1), (2 * norm, 1), (norm / 7, 1 / 7)):
        scales = jax.tree.map(lambda leaf, share=share: share * jnp.abs(leaf), gradient)
        measure = jax.jit(functools.partial(sharpness.measure, loss, clip_norm=clip_norm))
        curvatures.append(float(measure(params, scales)["preconditioned_sharpness"]))
    np.testing.assert_allclose(curvatures, curvatures[0], rtol=1e-3)


@pytest.mark.parametrize("row", [name for name, row in OPTIMIZERS.items() if row.adam])
def test_the_preconditioner_is_what_a_step_of_adam_divides_by(row):
    """Without momentum, a step is learning rate * gradient / P."""
    share = Share(learning_rate=0.25, epsilon=0.5)
    roles = {"w": Role((1, 1), False, False, share=share), "b": Role(None, False, False)}
    params = {"w": jnp.asarray(draw(3, 4)), "b": jnp.asarray(draw(4, seed=1))}
    fields: dict[str, Any] = dict(beta1=0.0, beta2=0.9, epsilon=0.3, groups=(("w", 0.2, 0.0),))
    fields["weight_decay"] = 0.0
    transform = make_optimizer(row, 0.7, lambda: roles, **fields)

    def preconditioner(**changes) -> Any:
        settings = optimizer_settings(**({"name": row} | fields | changes))
        return jax.jit(lambda state: optimizer.adam_preconditioner(state, settings, roles))(state)

    state, update = jax.jit(transform.init)(params), jax.jit(transform.update)
    for number in range(3):
        gradients = jax.tree.map(lambda leaf, n=number: jnp.cos(n + 3 * leaf), params)
        updates, state = update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    divisors = preconditioner()
    steps: Any = updates
    for name, step in steps.items():
        np.testing.assert_allclose(-0.7 * gradients[name] / divisors[name], step, rtol=1e-4)

    # Momentum is short of gradients that stay by its bias, after 3 steps.
    short = preconditioner(beta1=0.9)
    for name in divisors:
        np.testing.assert_allclose(short[name], (1 - 0.9**3) * divisors[name], rtol=1e-5)

    # Where not all steps are Adam's, at rates that are known, there is none.
    others = {"name": "muon"}, {"groups": (("w", 0.0, 0.0),)}, {"layer_warm_ups": (("w", 1, 1, 5),)}
    for changes in others:
        assert preconditioner(**changes) is None
