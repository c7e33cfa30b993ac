"""Optimizers against slow NumPy versions of the papers."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from transformer_jax.models.family import Role
from transformer_jax.models.layers.parameter import Share
from transformer_jax.training import optimizer
from transformer_jax.training.update_rules import OPTIMIZERS, Moments

BETA1, BETA2, EPSILON, RATE = 0.9, 0.98, 1e-9, 0.01


# Of the parameters below.
ROLES = {
    "dense/kernel": Role((1, 1), True, False),
    "dense/query_bias": Role(None, False, False),
    "encoder/self_attention/query": Role((1, 2), True, True),
    "encoder/self_attention/key": Role((1, 2), True, True),
    "encoder/self_attention/value": Role((1, 2), True, True),
    "encoder/self_attention/output": Role((2, 1), True, True),
    "encoder/self_attention/query_bias": Role(None, False, True),
    "encoder/self_attention/vector": Role(None, True, True),
    "encoder/feed_forward/up": Role((1, 1), True, True),
    "encoder/feed_forward/gate": Role((1, 1), True, True),
    "encoder/feed_forward/down": Role((1, 1), True, True),
    "encoder/feed_forward/up_bias": Role(None, False, True),
    "encoder/norm/scale": Role(None, False, True),
    "embedding/table": Role((1, 1), True, False),
    "output_projection/kernel": Role((1, 1), True, False),
    "head/kernel": Role((1, 1), True, False),
}


def make_optimizer(name, **changes):
    settings: dict[str, Any] = dict(
        schedule=lambda count: RATE * (count + 1),
        peak=RATE,
        beta1=BETA1,
        beta2=BETA2,
        epsilon=EPSILON,
        weight_decay=0.0,
        clip_norm=0.0,
        groups=(),
        roles=lambda: ROLES,
    )
    return optimizer.make_optimizer(name=name, **(settings | changes))


def run(transform, params, gradients) -> Any:
    @jax.jit
    def step(params, state, gradient):
        updates, state = transform.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.jit(transform.init)(params)
    for gradient in gradients:
        params, state = step(params, state, gradient)
    return params


@functools.partial(jax.jit, static_argnums=0)
def first_update(transform, params, gradient) -> Any:
    return transform.update(gradient, transform.init(params), params)[0]


def state_size(transform, params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(transform.init, params)))


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


@pytest.mark.parametrize("peak", [RATE, 10 * RATE])
def test_an_independent_decay_follows_the_schedule_and_not_its_peak(peak):
    """What decays in a step is the share of the peak that the schedule has left times the decay."""
    params, gradients = make_case()
    schedule, decay = (lambda count: peak * 0.5**count), 0.3
    changes = dict(schedule=schedule, peak=peak, groups=(("dense/kernel", 0.5, decay),))
    result = run(make_optimizer("adamw_independent", **changes), params, gradients)
    m = v = np.zeros(params["dense"]["kernel"].shape)
    expected = np.array(params["dense"]["kernel"], np.float64)
    for t, gradient in enumerate(gradients, start=1):
        g = np.array(gradient["dense"]["kernel"], np.float64)
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        step = adam_direction(m / (1 - BETA1**t), v / (1 - BETA2**t), t)
        left = 0.5 ** (t - 1)
        expected = expected - left * (peak * 0.5 * step + decay * expected)
    np.testing.assert_allclose(result["dense"]["kernel"], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shares_of_a_parameterisation_are_factors_on_rate_and_epsilon(name):
    """Of Adam's and Lion's rate as they are; steps of Adafactor and LAMB have the parameter's size
    already, and Muon's matrices a norm that grows as the root of the width. RAdam's first steps are
    of the momentum alone, which the factor on epsilon scales."""
    params, gradients = make_stack()
    own = Share(deviation=0.5, learning_rate=0.125, epsilon=0.25, width=4.0)
    shared = {path: role._replace(share=own) for path, role in ROLES.items()}
    scaled = make_optimizer(name, roles=lambda: shared)
    plain = make_optimizer(name, epsilon=EPSILON * own.epsilon)
    found, expected = (first_update(t, params, gradients[0]) for t in (scaled, plain))
    for path, update in jax.tree_util.tree_leaves_with_path(found):
        factor = {"adafactor": 0.25, "lamb": 0.25, "radam": 0.5}.get(name, 0.125)
        if name == "muon" and path[-1].key in AXES:
            factor = 0.25
        np.testing.assert_allclose(update, factor * at(path, expected), rtol=1e-4, atol=1e-7)


def test_radam_passes_through_both_of_its_branches():
    rho_inf = 2 / (1 - BETA2) - 1
    rho = [rho_inf - 2 * t * BETA2**t / (1 - BETA2**t) for t in range(1, 13)]
    assert min(rho) < 5 < max(rho)


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.decays])
def test_decay_is_for_the_parameters_whose_role_says_so(name):
    """Without a gradient, all that moves a parameter is its decay."""
    params, _ = make_stack()
    transform = make_optimizer(name, weight_decay=0.5)
    rate = 1.0 if OPTIMIZERS[name].independent else RATE
    moved = first_update(transform, params, jax.tree.map(jnp.zeros_like, params))
    for path, update in jax.tree_util.tree_leaves_with_path(moved):
        role = ROLES[jax.tree_util.keystr(path, simple=True, separator="/")]
        decay = rate * 0.5 if role.decay else 0.0
        np.testing.assert_allclose(update, -decay * at(path, params), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_moment_has_an_effect_where_the_row_says_so(name):
    params, gradients = make_case()

    def program(**changes):
        transform = make_optimizer(name, **changes)
        update = lambda param, g: transform.update(g, transform.init(param), param)  # noqa: E731
        return str(jax.make_jaxpr(update)(params, gradients[0]))

    changed = {moment for moment in Moments._fields if program(**{moment: 0.125}) != program()}
    assert changed == set(OPTIMIZERS[name].reads)


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


def lion_reference(param, gradients, weight_decay):
    """Algorithm 2 of Chen et al. 2023."""
    param, m = np.array(param, np.float64), np.zeros(param.shape)
    for t, g in enumerate(gradients, start=1):
        direction = np.sign(BETA1 * m + (1 - BETA1) * np.array(g, np.float64))
        param = param - RATE * t * (direction + weight_decay * param)
        m = BETA2 * m + (1 - BETA2) * np.array(g, np.float64)
    return param


def test_lion_is_the_papers_algorithm():
    params, gradients = make_case()
    result = run(make_optimizer("lion", weight_decay=0.5), params, gradients)
    for leaf, decay in (("kernel", 0.5), ("query_bias", 0.0)):
        leaf_gradients = [g["dense"][leaf] for g in gradients]
        expected = lion_reference(params["dense"][leaf], leaf_gradients, decay)
        np.testing.assert_allclose(result["dense"][leaf], expected, rtol=1e-4, atol=1e-5)


# Adafactor and Muon, which see whole matrices

L, D, H, K, V = 2, 8, 3, 4, 7
# The axes of one layer that are inputs and outputs of its matrix, as the einsums have them.
AXES = {
    "query": ((0,), (1, 2)),
    "key": ((0,), (1, 2)),
    "value": ((0,), (1, 2)),
    "output": ((0, 1), (2,)),
    "up": ((0,), (1,)),
    "gate": ((0,), (1,)),
    "down": ((0,), (1,)),
}


def make_stack(d_model=D, head_dim=K, steps=3) -> tuple[Any, Any]:
    """Parameters of a stack of L layers and of a table, and gradients."""
    rng = np.random.default_rng(1)
    inward, outward = (d_model, H, head_dim), (H, head_dim, d_model)
    shapes = {
        "encoder": {
            "self_attention": {
                **{name: (L, *inward) for name in ("query", "key", "value")},
                "output": (L, *outward),
                "query_bias": (L, *inward[1:]),
                "vector": (L, *inward[1:]),
            },
            "feed_forward": {
                **{name: (L, d_model, 2 * d_model) for name in ("up", "gate")},
                "down": (L, 2 * d_model, d_model),
                "up_bias": (L, 2 * d_model),
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


def adafactor_reference(param, gradients):
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


def assert_each_leaf(reference, params, gradients, result, **tolerance):
    for path, param in jax.tree_util.tree_leaves_with_path(params):
        get = functools.partial(at, path)
        expected = per_layer(reference(path), path, param, list(map(get, gradients)))
        np.testing.assert_allclose(get(result), expected, **tolerance, err_msg=str(path))


def at(path, tree):
    return functools.reduce(lambda node, key: node[key.key], path, tree)


@pytest.mark.parametrize("sizes", [(D, K), (128, 43)])
def test_adafactor_is_the_papers_algorithm_on_each_layers_matrices(sizes):
    params, gradients = make_stack(*sizes)
    transform = make_optimizer("adafactor")
    result = run(transform, params, gradients)
    assert_each_leaf(
        lambda path: adafactor_reference, params, gradients, result, rtol=1e-3, atol=1e-6
    )
    assert (state_size(transform, params) < optax.tree.size(params)) == (sizes[0] >= 128)


def test_adafactor_of_one_matrix_is_that_of_optax():
    rng = np.random.default_rng(2)
    params = {"head": {"kernel": jnp.asarray(rng.normal(size=(130, 140)), jnp.float32)}}
    gradients = [jax.tree.map(lambda p, t=t: jnp.sin(40 * p + t), params) for t in range(4)]
    expected = run(optax.adafactor(lambda count: RATE * (count + 1)), params, gradients)
    result = run(make_optimizer("adafactor"), params, gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), result, expected)


def scaled_adam_reference(scale):
    """Adam whose direction is multiplied by scale(direction, gradient, v_hat, param)."""

    def reference(param, gradients):
        x, m, v = np.array(param, np.float64), np.zeros(param.shape), np.zeros(param.shape)
        for t, g in enumerate(gradients, start=1):
            g = np.array(g, np.float64)
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            v_hat = v / (1 - BETA2**t)
            u = adam_direction(m / (1 - BETA1**t), v_hat, t)
            x = x - RATE * t * u * scale(u, g, v_hat, x)
        return x

    return reference


def over_ratio(u, g, v_hat, x):
    """Algorithm 2 of Wortsman et al. 2023 (2304.13013)."""
    return 1 / max(1.0, np.sqrt(np.mean(g**2 / np.maximum(v_hat, EPSILON**2))))


def share_of_norm(u, g, v_hat, x):
    """The ratio of You et al. 2019 (1904.00962), algorithm 2; 1 where one of both is 0."""
    norms = np.linalg.norm(x), np.linalg.norm(u)
    return norms[0] / norms[1] if all(norms) else 1.0


@pytest.mark.parametrize(("name", "scale"), [("stable_adamw", over_ratio), ("lamb", share_of_norm)])
def test_each_matrix_of_each_layer_is_scaled_as_in_the_paper(name, scale):
    params, gradients = make_stack()
    gradients[1] = jax.tree.map(lambda g: 7 * g, gradients[1])  # more than is known of its size
    result = run(make_optimizer(name), params, gradients)
    reference = scaled_adam_reference(scale)
    assert_each_leaf(lambda path: reference, params, gradients, result, rtol=1e-3, atol=1e-5)
    plain = run(make_optimizer("adamw"), params, gradients)
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        assert not np.allclose(leaf, at(path, plain), rtol=1e-3, atol=1e-5)


def test_gi_adam_is_adam_whose_second_moment_begins_with_the_first_square():
    """Under a constant gradient it is the bias correction of Adam that divides it."""
    params, gradients = make_case()
    constant = [gradients[0]] * 5
    result = run(make_optimizer("gi_adam"), params, constant)
    for leaf in ("kernel", "query_bias"):
        g = np.array(gradients[0]["dense"][leaf], np.float64)
        x, m, v = np.array(params["dense"][leaf], np.float64), np.zeros(g.shape), g**2
        for t in range(1, 6):
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            v_hat = v / (1 - BETA2**t)
            x = x - RATE * t * adam_direction(m / (1 - BETA1**t), v_hat, t)
        np.testing.assert_allclose(result["dense"][leaf], x, rtol=1e-4)


@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_warm_up_of_layers_is_of_their_updates_alone(burn_in):
    params, gradients = make_stack(steps=1)
    rows = (("encoder/self_attention/*", 2, 2, 4), ("encoder/*/output", 1, 2, 2))
    transform = make_optimizer("adamw", layer_warm_ups=rows, burn_in_steps=burn_in)
    plain = make_optimizer("adamw")
    state, other = transform.init(params), plain.init(params)
    for s in (max(step - burn_in, 0) for step in range(1, 6 + burn_in)):
        found, state = transform.update(gradients[0], state, params)
        expected, other = plain.update(gradients[0], other, params)
        leaves: Any = jax.tree_util.tree_leaves_with_path(found)
        for path, update in leaves:
            factor = np.ones(L) if path[0].key == "encoder" else np.ones(1)
            if path[1].key == "self_attention":
                factor[1] *= min(s / 4, 1)
            if path[-1].key == "output":
                factor *= min(s / 2, 1)
            own = factor.reshape(-1, *[1] * (update.ndim - 1))
            wanted = np.asarray(at(path, expected)) * own
            np.testing.assert_allclose(update, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (("encoder/*", 1, L + 1, 5), f"from layer 1 to {L + 1}: there are 1 to {L}"),
        (("encoder/*", 0, 1, 5), f"from layer 0 to 1: there are 1 to {L}"),
        (("embedding/*", 1, 1, 5), "'embedding/.* fits no parameter of layers"),
        (("*", 1, 1, 0), "takes 0 steps"),
    ],
)
def test_a_warm_up_of_layers_names_layers_and_steps(row, words):
    with pytest.raises(ValueError, match="optimizer.layer_warm_ups: .*" + words):
        make_optimizer("adamw", layer_warm_ups=(row,)).init(make_stack()[0])


def muon_reference(param, gradients):
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


def test_muon_is_the_published_iteration_on_matrices_and_adam_elsewhere():
    params, gradients = make_stack()
    result = run(make_optimizer("muon"), params, gradients)

    def rule(path):
        if path[-1].key in AXES:
            return muon_reference
        return lambda param, gradients: reference(adam_direction, param, gradients, 0.0)

    assert_each_leaf(rule, params, gradients, result, rtol=1e-3, atol=1e-4)


def test_muon_is_that_of_optax_with_the_axes_of_our_kernels():
    params, gradients = make_stack()

    def dimension_numbers(params):
        def one(path, _):
            axes = AXES.get(path[-1].key)
            if axes is None:
                return None
            return contrib.MuonDimensionNumbers(*(tuple(a + 1 for a in side) for side in axes))

        return jax.tree_util.tree_map_with_path(one, params)

    transform = contrib.muon(
        lambda count: RATE * (count + 1),
        beta=BETA1,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=dimension_numbers,
    )
    expected = run(transform, params, gradients)["encoder"]
    result = run(make_optimizer("muon"), params, gradients)["encoder"]
    for sublayer in ("self_attention", "feed_forward"):
        for name in result[sublayer].keys() & AXES.keys():
            np.testing.assert_allclose(
                result[sublayer][name], expected[sublayer][name], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("name", ["muon", "adafactor"])
def test_layers_of_a_stack_do_not_see_each_other(name):
    params, (gradient, *_) = make_stack()
    transform = make_optimizer(name)
    other = jax.tree.map(lambda g: g.at[1].multiply(jnp.cos(100 * g[1])), gradient["encoder"])
    results = [
        first_update(transform, params, gradient | {"encoder": encoder})["encoder"]
        for encoder in (gradient["encoder"], other)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[0]), *results)
    differs = jax.tree.map(lambda a, b: bool(np.any(a[1] != b[1])), *results)
    assert all(jax.tree.leaves(differs))


def test_muon_refuses_a_model_without_scanned_layers():
    params, _ = make_stack(steps=1)
    unstacked = {path: role._replace(stacked=False) for path, role in ROLES.items()}
    with pytest.raises(ValueError, match='this model has none: use "adam" or "adamw"'):
        make_optimizer("muon", roles=lambda: unstacked).init(params)


def test_every_layer_of_muons_step_is_near_orthogonal():
    params, gradients = make_stack(steps=1)
    updates = first_update(make_optimizer("muon"), params, gradients[0])
    kernel = np.array(updates["encoder"]["self_attention"]["query"]).reshape(L, D, H * K)
    values = np.linalg.svd(kernel, compute_uv=False) / (RATE * 0.2 * math.sqrt(H * K))
    assert values.shape == (L, D)
    assert np.all((0.5 < values) & (values < 1.5))


# Groups


@pytest.mark.parametrize(
    "name",
    [name for name, row in OPTIMIZERS.items() if row.decays and not row.independent],
)
def test_a_group_has_its_factor_and_its_decay(name):
    params, (gradient, *_) = make_stack()
    plain = first_update(make_optimizer(name), params, gradient)
    groups = (("encoder/*/query*", 0.5, 0.3), ("encoder/*", 2.0, 0.0), ("*/scale", 9.0, 9.0))
    with pytest.raises(ValueError, match=r"'\*/scale' fits no parameter"):
        make_optimizer(name, groups=groups).init(params)
    transform = make_optimizer(name, groups=groups[:2], weight_decay=0.2)
    grouped = first_update(transform, params, gradient)

    for path, update in jax.tree_util.tree_leaves_with_path(plain):
        leaf = path[-1].key
        factor, decay = 1.0, 0.2
        if path[0].key == "encoder":
            factor, decay = (0.5, 0.3) if leaf.startswith("query") else (2.0, 0.0)
        if leaf.endswith("bias") or leaf == "scale":
            decay = 0.0
        expected = factor * (update - RATE * decay * at(path, params))
        np.testing.assert_allclose(at(path, grouped), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_frozen_stays_has_no_state_and_no_part_in_the_norm(name):
    params, gradients = make_stack()
    groups = (("encoder/self_attention/*", 0.0, 0.0), ("embedding/*", 0.0, 0.0))
    transform = make_optimizer(name, groups=groups, clip_norm=0.1)
    result = run(transform, params, gradients)
    frozen = result["encoder"]["self_attention"], result["embedding"]
    before = params["encoder"]["self_attention"], params["embedding"]
    jax.tree.map(np.testing.assert_array_equal, frozen, before)

    def without_frozen(tree):
        encoder = {key: tree["encoder"][key] for key in ("feed_forward", "norm")}
        return {"encoder": encoder, "output_projection": tree["output_projection"]}

    alone = make_optimizer(name, clip_norm=0.1)
    expected = run(alone, without_frozen(params), [without_frozen(g) for g in gradients])
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(assert_close, without_frozen(result), expected)
    assert state_size(transform, params) == state_size(alone, expected)


def test_group_mistakes_are_named():
    params, _ = make_stack()
    for glob in ("decoder/*", "query", "Encoder/*"):
        with pytest.raises(ValueError, match="optimizer.groups.*fits no parameter"):
            make_optimizer("adam", groups=((glob, 1.0, 0.0),)).init(params)
    for row in (("*", -1.0, 0.0), ("*", 1.0, -0.1)):
        with pytest.raises(ValueError, match=f"{row[1]} and {row[2]} for"):
            make_optimizer("adamw", groups=(row,))
    with pytest.raises(ValueError, match="weight_decay=0.1.*encoder.*adamw"):
        make_optimizer("adam", groups=(("encoder/*", 1.0, 0.1),))


def test_optimizer_mistakes_are_named():
    with pytest.raises(ValueError, match="weight_decay=0.1.*adamw"):
        make_optimizer("adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="'sgd'.*radam.*muon"):
        make_optimizer("sgd")
