"""Rules of update against slow NumPy versions of the papers."""

import functools
import math

import jax
import numpy as np
import optax
import pytest

from tests.training.stack import (
    AXES,
    BETA1,
    BETA2,
    EPSILON,
    RATE,
    ROLES,
    D,
    K,
    L,
    adam_direction,
    at,
    make_case,
    make_optimizer,
    make_stack,
    run,
    state_size,
)
from transformer_jax.training import soap as training_soap
from transformer_jax.training.update_rules import OPTIMIZERS

STEPS = 250  # of a training whose first are made


def adam_like(direction):
    """Steps by a direction(gradient, m_hat, v_hat, t, parameter) from Adam's moments."""

    def reference(param, gradients):
        x, m, v = np.array(param, np.float64), np.zeros(param.shape), np.zeros(param.shape)
        for t, g in enumerate(gradients, start=1):
            g = np.array(g, np.float64)
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


def lion(param, gradients):
    """Algorithm 2 of Chen et al. 2023."""
    x, m = np.array(param, np.float64), np.zeros(param.shape)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, np.float64)
        x = x - RATE * t * np.sign(BETA1 * m + (1 - BETA1) * g)
        m = BETA2 * m + (1 - BETA2) * g
    return x


def sgd(param, gradients):
    x = np.array(param, np.float64)
    for t, g in enumerate(gradients, start=1):
        x = x - RATE * t * np.array(g, np.float64)
    return x


def signum(param, gradients):
    """Bernstein et al. 2018 (1802.04434): the sign of the momentum."""
    x, m = np.array(param, np.float64), np.zeros(param.shape)
    for t, g in enumerate(gradients, start=1):
        m = BETA1 * m + (1 - BETA1) * np.array(g, np.float64)
        x = x - RATE * t * np.sign(m)
    return x


def ademamix(param, gradients):
    """Algorithm 1 of Pagliardini et al. 2024 (2409.03137), with both of its warm-ups."""
    half_life = STEPS * math.log(0.5) / math.log(0.9999) / 256_000
    begin, end = math.log(BETA1), math.log(0.5) / half_life
    x, slow = np.array(param, np.float64), np.zeros(param.shape)
    m, v = np.zeros(param.shape), np.zeros(param.shape)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, np.float64)
        beta3 = math.exp(begin * end / ((1 - t / STEPS) * end + t / STEPS * begin))
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
        slow = beta3 * slow + (1 - beta3) * g
        m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
        x = x - RATE * t * (m_hat + 8 * t / STEPS * slow) / (np.sqrt(v_hat) + EPSILON)
    return x


def schedule_free(param, gradients):
    """Algorithm 1 of Defazio et al. 2024 (2405.15682): y, and the average x."""
    x = y = z = np.array(param, np.float64)
    v, weights = np.zeros(param.shape), 0.0
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, np.float64)
        v = BETA2 * v + (1 - BETA2) * g**2
        z = z - RATE * t * adam_direction(g, v / (1 - BETA2**t), t)
        rate = RATE * t * math.sqrt(1 - BETA2**t)  # the largest so far
        weights += rate**2
        c = rate**2 / weights
        x = (1 - c) * x + c * z
        y = (1 - BETA1) * z + BETA1 * x
    return y, x


def soap(param, gradients):
    """Algorithms 3 and 4 of Vyas et al. 2024 (2409.11321); the first gradient makes the bases."""
    first, *others = (np.array(g, np.float64) for g in gradients)
    x, m, v = np.array(param, np.float64), np.zeros(param.shape), np.zeros(param.shape)
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


def adafactor(param, gradients):
    """Algorithm 4 of Shazeer and Stern 2018, factored where both sides have 128 or more."""
    x = np.array(param, np.float64)
    rms = lambda x: np.sqrt(np.mean(x**2))  # noqa: E731
    factored = x.ndim == 2 and min(x.shape) >= 128
    r, c, v = np.zeros((x.shape[0], 1)), np.zeros((1, x.shape[-1])), np.zeros(x.shape)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, np.float64)
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


def muon(param, gradients):
    """Jordan et al. 2024: five Newton-Schulz steps with the published coefficients.

    The momentum is Nesterov's with Adam's correction of its start, and the size of a step is that
    of Liu et al. 2025, equation 4.
    """
    x, m = np.array(param, np.float64), np.zeros(param.shape)
    a, b, c = 3.4445, -4.7750, 2.0315
    for t, g in enumerate(gradients, start=1):
        m = BETA1 * m + (1 - BETA1) * g
        o = BETA1 * m / (1 - BETA1 ** (t + 1)) + (1 - BETA1) * g / (1 - BETA1**t)
        o = o / np.linalg.norm(o)
        for _ in range(5):
            o = a * o + b * (o @ o.T) @ o + c * (o @ o.T) @ (o @ o.T) @ o
        x = x - RATE * t * 0.2 * math.sqrt(max(o.shape)) * o
    return x


# How each row steps a matrix or a vector of one layer
REFERENCES = {
    "adam": adam_like(adam),
    "radam": adam_like(radam),
    "stable_adamw": adam_like(stable_adam),
    "lamb": adam_like(lamb),
    "lion": lion,
    "signum": signum,
    "sgd": sgd,
    "ademamix": ademamix,
    "schedule_free": lambda param, gradients: schedule_free(param, gradients)[0],
    "soap": soap,
    "adafactor": adafactor,
    "muon": muon,
}


def per_layer(reference, path, param, gradients):
    """A slow reference of one matrix or vector, for each layer of a leaf."""
    name = path[-1].key
    if path[0].key != "encoder":
        return reference(param, gradients)
    layers = []
    for layer in range(L):
        shape = param.shape[1:]
        columns = math.prod(shape[axis] for axis in AXES[name][1]) if name in AXES else -1
        flat = (-1, columns) if name in AXES else (-1,)
        result = reference(
            np.array(param[layer]).reshape(flat),
            [np.array(g[layer]).reshape(flat) for g in gradients],
        )
        layers.append(result.reshape(shape))
    return np.stack(layers)


@pytest.mark.parametrize("name", REFERENCES)
def test_equals_the_papers_algorithm_on_each_matrix_of_each_layer(name):
    """Decay apart, of which `optimizer_test` sees that it adds to the step. Gradients are of more
    than one size; of Adafactor's matrices, some are large enough to be factored."""
    # SOAP'"'"'s first bases have none but one choice where matrices are square.
    sizes = {"adafactor": (128, 43), "soap": (6, 2)}.get(name, (D, K))
    params, gradients = make_stack(*sizes, steps=12)
    # More than is known of its size
    gradients[1] = jax.tree.map(lambda g: 7 * np.asarray(g), gradients[1])
    transform = make_optimizer(name, steps=STEPS)
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
        assert state_size(transform, params) < optax.tree.size(params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_setting_has_an_effect_where_the_row_says_so(name):
    params, gradients = make_case()

    def program(**changes):
        transform = make_optimizer(name, **changes)
        update = lambda param, g: transform.update(g, transform.init(param), param)  # noqa: E731
        return str(jax.make_jaxpr(update)(params, gradients[0]))

    settings = {setting for row in OPTIMIZERS.values() for setting in row.reads}
    plain = program()
    changed = {setting for setting in settings if program(**{setting: 0.125}) != plain}
    assert changed == set(OPTIMIZERS[name].reads)


def test_gi_adam_corrects_a_second_moment_that_begins_as_the_first_square():
    """The loop of the authors' `adam_init(grads=...)` on gradients that shrink tenfold, where Adam
    at a rate times sqrt(1 - beta2^t) would make the last step twice as long."""
    params, gradients = make_case()
    shrinking = [jax.tree.map(lambda g, n=n: 0.1 ** (n / 10) * g, gradients[0]) for n in range(11)]
    transform = make_optimizer("gi_adam")
    runs = [run(transform, params, shrinking[:steps]) for steps in (10, 11)]
    for leaf in ("kernel", "query_bias"):
        x = np.array(params["dense"][leaf], np.float64)
        m, v = np.zeros(x.shape), np.array(shrinking[0]["dense"][leaf], np.float64) ** 2
        for t, gradient in enumerate(shrinking, start=1):
            g = np.array(gradient["dense"][leaf], np.float64)
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
            step = RATE * t * m_hat / (np.sqrt(v_hat) + EPSILON)
            x = x - step
        before, after = (np.array(each["dense"][leaf]) for each in runs)
        np.testing.assert_allclose(after, x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(before - after, step, rtol=1e-2, atol=1e-5)


def test_schedule_free_scores_the_average_and_what_is_frozen_as_it_is():
    params, gradients = make_case()
    transform = make_optimizer("schedule_free", groups=(("*/query_bias", 0.0, 0.0),))
    reached, state = params, transform.init(params)
    update = jax.jit(transform.update)
    for gradient in gradients:
        updates, state = update(gradient, state, reached)
        reached = optax.apply_updates(reached, updates)
    average = OPTIMIZERS["schedule_free"].average
    assert average is not None
    averages = average(reached, state)["dense"]
    _, expected = schedule_free(
        params["dense"]["kernel"], [g["dense"]["kernel"] for g in gradients]
    )
    np.testing.assert_allclose(averages["kernel"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(averages["query_bias"], params["dense"]["query_bias"])


def test_two_rules_are_adam_where_what_they_add_is_nothing(monkeypatch):
    """AdEMAMix where its slow momentum has no factor yet; SOAP where it turns no axis, from the
    second gradient on, and for vectors."""
    params, gradients = make_case()
    constant, close = (lambda count: RATE), functools.partial(np.testing.assert_allclose, rtol=1e-4)
    adam = [run(make_optimizer("adam", constant), params, gradients[n:]) for n in (0, 1)]
    early = run(make_optimizer("ademamix", constant, steps=2**31 - 1), params, gradients)
    jax.tree.map(close, early, adam[0])
    monkeypatch.setattr(training_soap, "LARGEST", 1)
    unturned = run(make_optimizer("soap", constant), params, gradients)["dense"]
    close(unturned["kernel"], adam[1]["dense"]["kernel"])
    close(unturned["query_bias"], adam[0]["dense"]["query_bias"])


def test_radam_is_pytorchs():
    """Also in its first steps, before the variance is tractable."""
    torch = pytest.importorskip("torch")
    params, gradients = make_case()
    weight = torch.nn.Parameter(torch.tensor(np.array(params["dense"]["kernel"])))
    theirs = torch.optim.RAdam([weight], lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    for steps, gradient in enumerate(gradients, start=1):
        theirs.param_groups[0]["lr"] = RATE * steps
        weight.grad = torch.tensor(np.array(gradient["dense"]["kernel"]))
        theirs.step()
    kernel = run(make_optimizer("radam"), params, gradients)["dense"]["kernel"]
    np.testing.assert_allclose(kernel, weight.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("muon", {}, 'this model has none: use "adam" or "adamw"'),
        ("adamw", {"weight_decay_power": 2}, "weight_decay_power=2 .*model has none: set it to 1"),
    ],
)
def test_what_is_of_scanned_layers_is_refused_without_them(name, changes, words):
    params, _ = make_stack(steps=1)
    unstacked = {path: role._replace(stacked=False) for path, role in ROLES.items()}
    with pytest.raises(ValueError, match=words):
        make_optimizer(name, roles=lambda: unstacked, **changes).init(params)


def test_schedule_free_refuses_to_train_what_it_could_not_score():
    with pytest.raises(ValueError, match="optimizer.beta1=0 .*'schedule_free'.* make it more"):
        make_optimizer("schedule_free", beta1=0.0)
