"""The chain around a rule: decay, shares, clipping, groups, and layers that warm up."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest

from tests.training import stack
from tests.training.stack import BETA1, BETA2, RATE, ROLES, L, at, make_optimizer, make_stack, run
from transformer_jax.models.family import parameter_name
from transformer_jax.models.layers.parameter import Share
from transformer_jax.training.update_rules import OPTIMIZERS

PLAIN = 0.025  # epsilon of the updates that others are compared with
ROUNDED = {"schedule_free": 1e-6}  # of whose updates, differences of parameters, so much is chance


@functools.cache
def plain_update(name):
    """Of the stack, by an optimizer that nothing changes."""
    params, gradients = make_stack()
    return stack.first_update(make_optimizer(name, epsilon=PLAIN), params, gradients[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shares_of_a_parameterisation_are_factors_on_rate_and_epsilon(name):
    """Of Adam's and Lion's rate as they are; steps of Adafactor and LAMB have the parameter's size
    already, and Muon's matrices a norm that grows as the root of the width. RAdam's first steps are
    of the momentum alone and SGD's of the gradient, which the factor on epsilon scales."""
    params, gradients = make_stack()
    share = Share(deviation=0.5, learning_rate=0.125, epsilon=PLAIN / 0.1, width=4.0)
    shared = {path: role._replace(share=share) for path, role in ROLES.items()}
    scaled = make_optimizer(name, epsilon=0.1, roles=lambda: shared)  # as large as the gradients
    updates, expected = stack.first_update(scaled, params, gradients[0]), plain_update(name)
    atol = ROUNDED.get(name, 1e-7)
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        factor = {"adafactor": 0.25, "lamb": 0.25, "radam": 0.5, "sgd": 0.5}.get(name, 0.125)
        if name == "muon" and path[-1].key in stack.AXES:
            factor = 0.25
        np.testing.assert_allclose(update, factor * at(path, expected), rtol=1e-4, atol=atol)


@pytest.mark.parametrize("name", ["adamw", "adamw_independent"])
def test_matrices_of_layers_decay_by_the_square_of_what_is_left(name):
    """Algorithm of AdamC (Defazio 2025, 2506.02285); embeddings, heads and vectors as ever."""
    params, gradients = make_stack(steps=10)
    peak, decay = 5 * RATE, 0.3
    changes = dict(learning_rate=peak, weight_decay=decay, weight_decay_power=2)
    result = run(make_optimizer(name, lambda n: peak * 0.7**n, **changes), params, gradients)
    for path, param in jax.tree_util.tree_leaves_with_path(params):
        role, x = ROLES[parameter_name(path)], np.array(param, np.float64)
        m = v = np.zeros(x.shape)
        for t, gradient in enumerate(gradients, start=1):
            g, factor = np.array(at(path, gradient), np.float64), 0.7 ** (t - 1)
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
            step = stack.adam_direction(m / (1 - BETA1**t), v / (1 - BETA2**t), t)
            share = factor**2 if path[0].key == "encoder" and role.matrix else factor
            decayed = role.decay * decay * share * (1 if name == "adamw_independent" else peak)
            x = x - peak * factor * step - decayed * x
        np.testing.assert_allclose(at(path, result), x, rtol=1e-3, atol=1e-5)


def test_clipping_bounds_the_global_norm():
    params, (gradient,) = make_stack(steps=1)
    norm = optax.tree.norm(gradient)
    # Of the gradients themselves, before a parameterisation divides them by factors on epsilon.
    share = Share(epsilon=0.25)
    shared = {path: role._replace(share=share) for path, role in ROLES.items()}
    # Adam's first moment is linear in the gradient: it shows how much of it came through.
    for clip_norm, factor in ((float(norm) / 2, 0.5), (float(norm) * 2, 1.0), (0.0, 1.0)):
        transform = make_optimizer("adam", clip_norm=clip_norm, roles=lambda: shared)
        _, state = jax.jit(transform.update)(gradient, transform.init(params), params)
        moment = optax.tree.get(state, "mu")
        expected = jax.tree.map(lambda g, f=factor: f * (1 - BETA1) * g / 0.25, gradient)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), moment, expected)


@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_warm_up_of_layers_is_of_their_updates_alone(burn_in):
    params, gradients = make_stack(steps=1)
    rows = (("encoder/self_attention/*", 2, 2, 4), ("encoder/*/output", 1, 2, 2))
    transform = make_optimizer("adamw", layer_warm_ups=rows, burn_in_steps=burn_in)
    plain = make_optimizer("adamw")
    state, other = (jax.jit(each.init)(params) for each in (transform, plain))
    warmed_up, whole = jax.jit(transform.update), jax.jit(plain.update)
    for s in (max(step - burn_in, 0) for step in range(1, 6 + burn_in)):
        updates, state = warmed_up(gradients[0], state, params)
        expected, other = whole(gradients[0], other, params)
        leaves: Any = jax.tree_util.tree_leaves_with_path(updates)
        for path, update in leaves:
            factor = np.ones(L) if path[0].key == "encoder" else np.ones(1)
            if path[1].key == "self_attention":
                factor[1] *= min(s / 4, 1)
            if path[-1].key == "output":
                factor *= min(s / 2, 1)
            factors = factor.reshape(-1, *[1] * (update.ndim - 1))
            wanted = np.asarray(at(path, expected)) * factors
            np.testing.assert_allclose(update, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.decays])
def test_a_group_has_its_factor_and_its_decay(name):
    """Where the parameter's role says that it decays, by half of it where half of the peak is left
    and the power is 2."""
    params, (gradient, *_) = make_stack()
    groups = (("encoder/*/[qv]*", 0.5, 0.3), ("encoder/*", 2.0, 0.0))
    decays = dict(weight_decay=0.2, weight_decay_power=2, learning_rate=2 * RATE)
    transform = make_optimizer(name, groups=groups, epsilon=PLAIN, **decays)
    grouped = stack.first_update(transform, params, gradient)
    atol = ROUNDED.get(name, 1e-7)

    for path, update in jax.tree_util.tree_leaves_with_path(plain_update(name)):
        leaf = path[-1].key
        factor, decay = 1.0, 0.2
        if path[0].key == "encoder":
            factor, decay = (0.5, 0.3) if leaf[0] in "qv" else (2.0, 0.0)
        if leaf in stack.AXES:
            decay /= 2
        if not ROLES[parameter_name(path)].decay:
            decay = 0.0
        rate = 0.5 if OPTIMIZERS[name].independent else factor * RATE
        expected = factor * update - rate * decay * np.asarray(at(path, params))
        np.testing.assert_allclose(at(path, grouped), expected, rtol=1e-4, atol=atol)


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
    assert stack.state_size(transform, params) == stack.state_size(alone, expected)


def warm_up(glob, first, last, steps):
    return {"layer_warm_ups": ((glob, first, last, steps),)}


def group(glob, factor, decay):
    return {"groups": ((glob, factor, decay),)}


UNSTACKED = {"roles": lambda: {path: role._replace(stacked=False) for path, role in ROLES.items()}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (warm_up("encoder/*", 1, L + 1, 5), f"layer_warm_ups: .*layer 1 to {L + 1}: .* 1 to {L}"),
        (warm_up("encoder/*", 0, 1, 5), f"layer_warm_ups: .*layer 0 to 1: there are 1 to {L}"),
        (warm_up("embedding/*", 1, 1, 5), "layer_warm_ups: .*fits no parameter of layers"),
        (warm_up("*", 1, 1, 0), "layer_warm_ups: .*takes 0 steps"),
        (group("query", 1.0, 0.0), "groups: 'query' fits no parameter"),
        ({"groups": (("encoder/*", 1, 0), ("*/scale", 1, 0))}, "'./scale' fits no parameter"),
        (group("Encoder/*", 1.0, 0.0), "groups: 'Encoder/.' fits no parameter"),
        (group("*", 1.0, -0.1), "1.0 and -0.1 for"),
        ({"name": "adam"} | group("encoder/*", 1.0, 0.1), "weight_decay=0.1.*encoder.*adamw"),
        ({"name": "muon"} | UNSTACKED, 'this model has none: use "adam" or "adamw"'),
        ({"weight_decay_power": 2} | UNSTACKED, "weight_decay_power=2 .*has none: set it to 1"),
        (
            {"name": "schedule_free", "beta1": 0.0},
            "optimizer.beta1=0 .*'schedule_free'.* make it more",
        ),
    ],
)
def test_mistakes_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        make_optimizer(**({"name": "adamw"} | changes)).init(make_stack()[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_fork_may_change_leaves_the_structure_of_the_state(name):
    """Otherwise its trunk's could not be restored."""
    params, _ = make_stack()
    decay = {"weight_decay": 0.1, "weight_decay_power": 2} if OPTIMIZERS[name].decays else {}
    plain, other = (
        make_optimizer(name, **changes).init(params)
        for changes in ({}, {"clip_norm": 1.0, **decay})
    )
    assert jax.tree.structure(plain) == jax.tree.structure(other)
    assert jax.tree.map(np.shape, plain) == jax.tree.map(np.shape, other)
