"""Rules of update against slow NumPy versions of the papers."""

import functools
import math

import jax
import numpy as np
import optax
import pytest

from tests.training import stack
from tests.training.stack import AXES, BETA1, BETA2, EPSILON, RATE, L, adam_direction, at, run
from transformer_jax.models.family import parameter_name
from transformer_jax.training import soap as training_soap
from transformer_jax.training.update_rules import OPTIMIZERS

STEPS = 250  # of a training whose first are made


def adam_like(direction, begin=np.zeros_like):
    """Steps by a direction(gradient, m_hat, v_hat, t, parameter) from Adam's moments.

    begin: what the second moment is before the first step, by the first gradient.
    """

    def reference(x, gradients):
        m, v = np.zeros(x.shape), begin(gradients[0])
        for t, g in enumerate(gradients, start=1):
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            x = x - RATE * t * direction(g, m / (1 - BETA1**t), v / (1 - BETA2**t), t, x)
        return x

    return reference


def adam(g, m_hat, v_hat, t, x):
    return adam_direction(m_hat, v_hat, t)


def radam(g, m_hat, v_hat, t, x):
    """Algorithm 2 of Liu et al. 2019 with the threshold of 5 that PyTorch has."""
    rho_inf = 2 / (1 - BETA2) - 1
    rho = rho_inf - 2 * t * BETA2**t / (1 - BETA2**t)
    if rho < 5:
        return m_hat
    r = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
    return r * m_hat / (np.sqrt(v_hat) + EPSILON)


def stable_adam(g, m_hat, v_hat, t, x):
    """Algorithm 2 of Wortsman et al. 2023 (2304.13013)."""
    rms = np.sqrt(np.mean(g**2 / np.maximum(v_hat, EPSILON**2)))
    return adam_direction(m_hat, v_hat, t) / max(1.0, rms)


def lamb(g, m_hat, v_hat, t, x):
    """The ratio of You et al. 2019 (1904.00962), algorithm 2; 1 where one of both is 0."""
    u = adam_direction(m_hat, v_hat, t)
    norms = np.linalg.norm(x), np.linalg.norm(u)
    return u * (norms[0] / norms[1] if all(norms) else 1.0)


def sgd(g, m_hat, v_hat, t, x):
    return g


def signum(g, m_hat, v_hat, t, x):
    """Bernstein et al. 2018 (1802.04434): the sign of the momentum."""
    return np.sign(m_hat)


def lion(x, gradients):
    """Algorithm 2 of Chen et al. 2023."""
    m = np.zeros(x.shape)
    for t, g in enumerate(gradients, start=1):
        x = x - RATE * t * np.sign(BETA1 * m + (1 - BETA1) * g)
        m = BETA2 * m + (1 - BETA2) * g
    return x


def ademamix(x, gradients):
    """Algorithm 1 of Pagliardini et al. 2024 (2409.03137), with both of its warm-ups."""
    half_life = STEPS * math.log(0.5) / math.log(0.9999) / 256_000
    begin, end = math.log(BETA1), math.log(0.5) / half_life
    m, v, slow = np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape)
    for t, g in enumerate(gradients, start=1):
        beta3 = math.exp(begin * end / ((1 - t / STEPS) * end + t / STEPS * begin))
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
        slow = beta3 * slow + (1 - beta3) * g
        m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
        x = x - RATE * t * (m_hat + 8 * t / STEPS * slow) / (np.sqrt(v_hat) + EPSILON)
    return x


def schedule_free(x, gradients):
    """Algorithm 1 of Defazio et al. 2024 (2405.15682): y, and the average x."""
    y = z = x
    v, weights = np.zeros(x.shape), 0.0
    for t, g in enumerate(gradients, start=1):
        v = BETA2 * v + (1 - BETA2) * g**2
        z = z - RATE * t * adam_direction(g, v / (1 - BETA2**t), t)
        rate = RATE * t * math.sqrt(1 - BETA2**t)  # the largest so far
        weights += rate**2
        c = rate**2 / weights
        x = (1 - c) * x + c * z
        y = (1 - BETA1) * z + BETA1 * x
    return y, x


def soap(x, gradients):
    """Algorithms 3 and 4 of Vyas et al. 2024 (2409.11321); the first gradient makes the bases."""
    first, *others = gradients
    m, v = np.zeros(x.shape), np.zeros(x.shape)
    left, right = (1 - BETA2) * first @ first.T, (1 - BETA2) * first.T @ first
    q_left, q_right = np.linalg.eigh(left)[1][:, ::-1], np.linalg.eigh(right)[1][:, ::-1]
    for t, g in enumerate(others, start=1):
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * (q_left.T @ g @ q_right) ** 2
        turned = q_left.T @ m @ q_right / (1 - BETA1**t)
        step = q_left @ adam_direction(turned, v / (1 - BETA2**t), t) @ q_right.T
        x = x - RATE * (t + 1) * step
        left = BETA2 * left + (1 - BETA2) * g @ g.T
        right = BETA2 * right + (1 - BETA2) * g.T @ g
        if t % 10 == 0:
            q_left, q_right = np.linalg.qr(left @ q_left)[0], np.linalg.qr(right @ q_right)[0]
    return x


def adafactor(x, gradients):
    """Algorithm 4 of Shazeer and Stern 2018, factored where both sides have 128 or more."""
    rms = lambda x: np.sqrt(np.mean(x**2))  # noqa: E731
    factored = x.ndim == 2 and min(x.shape) >= 128
    r, c, v = np.zeros((x.shape[0], 1)), np.zeros((1, x.shape[-1])), np.zeros(x.shape)
    for t, g in enumerate(gradients, start=1):
        decay, squares = 1 - t**-0.8, g**2 + 1e-30
        if factored:
            r = decay * r + (1 - decay) * squares.sum(1, keepdims=True)
            c = decay * c + (1 - decay) * squares.sum(0, keepdims=True)
            v = r @ c / r.sum()
        else:
            v = decay * v + (1 - decay) * squares
        u = g / np.sqrt(v)
        x = x - max(1e-3, rms(x)) * RATE * t * u / max(1, rms(u))
    return x


def muon(x, gradients):
    """Jordan et al. 2024: five Newton-Schulz steps with the published coefficients.

    The momentum is Nesterov's with Adam's correction of its start, and the size of a step is that
    of Liu et al. 2025, equation 4.
    """
    m = np.zeros(x.shape)
    a, b, c = 3.4445, -4.7750, 2.0315
    for t, g in enumerate(gradients, start=1):
        m = BETA1 * m + (1 - BETA1) * g
        o = BETA1 * m / (1 - BETA1 ** (t + 1)) + (1 - BETA1) * g / (1 - BETA1**t)
        o = o / np.linalg.norm(o)
        for _ in range(5):
            o = a * o + b * (o @ o.T) @ o + c * (o @ o.T) @ (o @ o.T) @ o
        x = x - RATE * t * 0.2 * math.sqrt(max(o.shape)) * o
    return x


# How each row steps a matrix or a vector of one layer, of float64 as its gradients are
REFERENCES = {
    "adam": adam_like(adam),
    # As the authors' `adam_init(grads=...)` has it
    "gi_adam": adam_like(adam, begin=np.square),
    "radam": adam_like(radam),
    "stable_adamw": adam_like(stable_adam),
    "lamb": adam_like(lamb),
    "lion": lion,
    "signum": adam_like(signum),
    "sgd": adam_like(sgd),
    "ademamix": ademamix,
    "schedule_free": lambda x, gradients: schedule_free(x, gradients)[0],
    "soap": soap,
    "adafactor": adafactor,
    "muon": muon,
}


def per_layer(reference, path, param, gradients):
    """A slow reference of one matrix or vector, for each layer of a leaf."""
    name, param = path[-1].key, np.array(param, np.float64)
    gradients = [np.array(g, np.float64) for g in gradients]
    if path[0].key != "encoder":
        return reference(param, gradients)
    layers = []
    for layer in range(L):
        shape = param.shape[1:]
        columns = math.prod(shape[axis] for axis in AXES[name][1]) if name in AXES else -1
        flat = (-1, columns) if name in AXES else (-1,)
        result = reference(param[layer].reshape(flat), [g[layer].reshape(flat) for g in gradients])
        layers.append(result.reshape(shape))
    return np.stack(layers)


@pytest.mark.parametrize("name", REFERENCES)
def test_equals_the_papers_algorithm_on_each_matrix_of_each_layer(name):
    """Decay apart, of which `optimizer_test` sees that it adds to the step. Gradients are of more
    than one size; of Adafactor's matrices, some are large enough to be factored."""
    # SOAP's first bases are unique only where matrices are square.
    sizes = {"adafactor": (128, 43), "soap": (6, 2)}.get(name, (stack.D, stack.K))
    params, gradients = stack.make_stack(*sizes, steps=12)
    # More than is known of its size
    gradients[1] = jax.tree.map(lambda g: 7 * np.asarray(g), gradients[1])
    transform = stack.make_optimizer(name, steps=STEPS)
    result = run(transform, params, gradients)
    for path, param in jax.tree_util.tree_leaves_with_path(params):
        get = functools.partial(at, path)
        rule = REFERENCES[name]
        if name == "soap" and path[-1].key in ("up", "down", "table", "kernel"):
            continue
        if name in ("muon", "soap") and path[-1].key not in AXES:
            rule = REFERENCES["adam"]
        expected = per_layer(rule, path, param, list(map(get, gradients)))
        atol = 1e-4 if name in ("muon", "soap") else 1e-5
        np.testing.assert_allclose(get(result), expected, rtol=1e-3, atol=atol, err_msg=str(path))
    if name == "adafactor":
        assert stack.state_size(transform, params) < optax.tree.size(params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_setting_has_an_effect_where_the_row_says_so(name):
    params, (gradient,) = stack.make_stack(steps=1)
    # Of one parameter little is to be traced.
    params, gradient = ({"embedding": tree["embedding"]} for tree in (params, gradient))

    def program(**changes):
        transform = stack.make_optimizer(name, **changes)
        update = lambda param, g: transform.update(g, transform.init(param), param)  # noqa: E731
        return str(jax.make_jaxpr(update)(params, gradient))

    settings = {setting for row in OPTIMIZERS.values() for setting in row.reads}
    plain = program()
    changed = {setting for setting in settings if program(**{setting: 0.125}) != plain}
    assert changed == set(OPTIMIZERS[name].reads)


def kernel(tree):
    """One matrix of a stack."""
    return np.array(tree["output_projection"]["kernel"], np.float64)


def test_schedule_free_scores_the_average_and_what_is_frozen_as_it_is():
    params, gradients = stack.make_stack(steps=12)
    transform = stack.make_optimizer("schedule_free", groups=(("embedding/*", 0.0, 0.0),))
    reached, state = params, transform.init(params)
    update = jax.jit(transform.update)
    for gradient in gradients:
        updates, state = update(gradient, state, reached)
        reached = optax.apply_updates(reached, updates)
    average = OPTIMIZERS["schedule_free"].average
    assert average is not None
    averages = average(reached, state)
    _, expected = schedule_free(kernel(params), list(map(kernel, gradients)))
    np.testing.assert_allclose(kernel(averages), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(averages["embedding"]["table"], params["embedding"]["table"])


def test_soap_is_adam_where_it_turns_no_axis(monkeypatch):
    """From the second gradient on, and for vectors."""
    params, gradients = stack.make_stack(steps=12)
    monkeypatch.setattr(training_soap, "LARGEST", 1)
    by_soap, by_adam, by_adam_later = (
        run(stack.make_optimizer(name, lambda count: RATE), params, gradients[first:])
        for name, first in (("soap", 0), ("adam", 0), ("adam", 1))
    )
    for path, leaf in jax.tree_util.tree_leaves_with_path(by_soap):
        is_matrix = stack.ROLES[parameter_name(path)].matrix is not None
        expected = at(path, by_adam_later if is_matrix else by_adam)
        np.testing.assert_allclose(leaf, expected, rtol=1e-4, atol=1e-6)
