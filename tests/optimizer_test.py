"""Schedules against their formulas, and optimizers against slow NumPy versions of the papers."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax import optimizer

NAMES = ["noam", "inverse_sqrt", "cosine", "linear", "constant"]


def make_schedule(name, **changes):
    settings: dict[str, Any] = dict(
        learning_rate=0.5, warmup_steps=4, steps=20, final_learning_rate=0.1, d_model=64
    )
    return optimizer.make_schedule(name=name, **(settings | changes))


def rate(schedule, s):
    """The learning rate of update number s, the first being 1."""
    return float(schedule(s - 1))


def test_noam_is_the_papers():
    schedule = make_schedule("noam", learning_rate=1.0, warmup_steps=4000, d_model=512)
    for s in (1, 2, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(s**-0.5, s * 4000**-1.5)
        assert rate(schedule, s) == pytest.approx(expected, rel=1e-5)
    assert rate(schedule, 4000) == pytest.approx(6.99e-4, rel=1e-3)  # the base model's peak


@pytest.mark.parametrize("name", NAMES)
def test_warmup_is_a_line_through_zero_that_meets_the_peak(name):
    schedule = make_schedule(name)
    peak = 0.5 * (64 * 4) ** -0.5 if name == "noam" else 0.5
    for s in range(1, 5):
        assert rate(schedule, s) == pytest.approx(peak * s / 4, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_without_warmup_the_first_update_has_the_peak(name):
    schedule = make_schedule(name, warmup_steps=0)
    assert rate(schedule, 1) == pytest.approx(0.5 * 64**-0.5 if name == "noam" else 0.5)


def test_decay_follows_the_formula():
    for s in range(4, 21):
        done = (s - 4) / 16
        expected = {
            "inverse_sqrt": 0.5 * math.sqrt(4 / s),
            "cosine": 0.1 + 0.4 * (1 + math.cos(math.pi * done)) / 2,
            "linear": 0.5 - 0.4 * done,
            "constant": 0.5,
        }
        for name, value in expected.items():
            assert rate(make_schedule(name), s) == pytest.approx(value, rel=1e-5), (name, s)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_the_last_update_and_all_after_have_the_final_rate(name):
    schedule = make_schedule(name)
    assert rate(schedule, 20) == pytest.approx(0.1)
    assert rate(schedule, 50) == pytest.approx(0.1)


def test_schedule_mistakes_are_named():
    with pytest.raises(ValueError, match="'cosin'.*cosine"):
        make_schedule("cosin")
    with pytest.raises(ValueError, match="-1"):
        make_schedule("noam", warmup_steps=-1)


BETA1, BETA2, EPSILON, RATE = 0.9, 0.98, 1e-9, 0.01


def make_optimizer(name, **changes):
    settings: dict[str, Any] = dict(
        schedule=lambda count: RATE * (count + 1),
        beta1=BETA1,
        beta2=BETA2,
        epsilon=EPSILON,
        weight_decay=0.0,
        clip_norm=0.0,
    )
    return optimizer.make_optimizer(name=name, **(settings | changes))


def run(transform, params, gradients) -> Any:
    state = transform.init(params)
    for gradient in gradients:
        updates, state = transform.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params


def make_case() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    params = {"dense": {"kernel": rng.normal(size=(2, 3)), "query_bias": rng.normal(size=3)}}
    gradients = [jax.tree.map(lambda p: rng.normal(size=p.shape), params) for _ in range(12)]
    as_jax = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)  # noqa: E731
    return as_jax(params), as_jax(gradients)


def adam_direction(m_hat, v_hat, t):
    return m_hat / (np.sqrt(v_hat) + EPSILON)


def radam_direction(m_hat, v_hat, t):
    """Algorithm 2 of Liu et al. 2019 (the threshold 5 instead of 4 is their code's)."""
    rho_inf = 2 / (1 - BETA2) - 1
    rho = rho_inf - 2 * t * BETA2**t / (1 - BETA2**t)
    if rho < 5:
        return m_hat
    r = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
    return r * m_hat / (np.sqrt(v_hat) + EPSILON)


def reference(direction, param, gradients, weight_decay):
    param = np.array(param, np.float64)
    m = v = np.zeros_like(param)
    for t, g in enumerate(gradients, start=1):
        g = np.array(g, np.float64)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g**2
        step = direction(m / (1 - BETA1**t), v / (1 - BETA2**t), t)
        param = param - RATE * t * (step + weight_decay * param)
    return param


@pytest.mark.parametrize(
    "name, direction, weight_decay",
    [
        ("adam", adam_direction, 0.0),
        ("adamw", adam_direction, 0.5),
        ("radam", radam_direction, 0.0),
        ("radam", radam_direction, 0.5),
    ],
)
def test_equals_the_papers_algorithm(name, direction, weight_decay):
    params, gradients = make_case()
    result = run(make_optimizer(name, weight_decay=weight_decay), params, gradients)
    for leaf, decay in (("kernel", weight_decay), ("query_bias", 0.0)):
        leaf_gradients = [g["dense"][leaf] for g in gradients]
        expected = reference(direction, params["dense"][leaf], leaf_gradients, decay)
        np.testing.assert_allclose(result["dense"][leaf], expected, rtol=1e-3, atol=1e-5)


def test_radam_passes_through_both_of_its_branches():
    rho_inf = 2 / (1 - BETA2) - 1
    rho = [rho_inf - 2 * t * BETA2**t / (1 - BETA2**t) for t in range(1, 13)]
    assert min(rho) < 5 < max(rho)


def test_decay_leaves_out_scales_omega_and_biases():
    params = {
        "decoder": {
            "self_attention": {"query": 0, "query_bias": 0},
            "self_attention_residual": {
                "norm": {"scale": 0, "bias": 0},
                "shortcut": {"omega": 0},
            },
            "feed_forward": {"up": 0, "up_bias": 0},
        },
        "embedding": {"table": 0},
        "scale": {"kernel": 0},  # only the leaf's own name counts
    }
    decayed = jax.tree_util.tree_leaves_with_path(optimizer.decays(params))
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, yes in decayed if yes}
    assert names == {
        "decoder/self_attention/query",
        "decoder/feed_forward/up",
        "embedding/table",
        "scale/kernel",
    }


def test_clipping_bounds_the_global_norm():
    params, gradients = make_case()
    gradient = gradients[0]
    norm = optax.tree.norm(gradient)
    # Adam's first moment is linear in the gradient: it shows how much of it came through.
    for clip_norm, factor in ((float(norm) / 2, 0.5), (float(norm) * 2, 1.0), (0.0, 1.0)):
        transform = make_optimizer("adam", clip_norm=clip_norm)
        _, state = transform.update(gradient, transform.init(params), params)
        moment = optax.tree.get(state, "mu")
        expected = jax.tree.map(lambda g, f=factor: f * (1 - BETA1) * g, gradient)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moment, expected)


def test_optimizer_mistakes_are_named():
    with pytest.raises(ValueError, match="weight_decay=0.1.*adamw"):
        make_optimizer("adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="'sgd'.*radam"):
        make_optimizer("sgd")
