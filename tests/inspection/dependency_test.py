"""Dependencies, against the papers' equations in slow NumPy, token by token."""

import functools
import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from experiments.dependency.measure import dependency
from tests.inspection.models import ADMIN, POST_LN, PRE_LN, make, sublayers
from tests.models import tiny
from transformer_jax.inspection.dependency import own_dependency
from transformer_jax.inspection.measures import DIAGNOSTICS
from transformer_jax.inspection.observed import observe

MEASURES = (dependency, own_dependency)
OTHERS = "deepnorm rezero keel b2t residual_dual parallel hybrid_norm".split()


@functools.cache
def measured(config):
    """Random parameters, none of them neutral; what a packed batch shows of them; all measures."""

    def look(params, batch):
        _, observed = observe(make(config), params, batch)
        return observed, {
            stack: {measure.__name__: measure(config, params, stack, view) for measure in MEASURES}
            for stack, view in observed.items()
        }

    params = tiny.random_parameters(config)
    return params, *jax.device_get(jax.jit(look)(params, tiny.read_by(config, tiny.packed_batch())))


def slow_dependency(config, params, stack, view):
    """beta (n, n + 1), token by token, as the papers' equations say."""
    name = config.encoder_residual if stack == "encoder" else config.decoder_residual
    real = np.asarray(view.real)
    inputs, branches, outputs = (
        np.asarray(x, np.float64)[:, real] for x in (view.inputs, view.branches, view.outputs)
    )
    n = len(branches)
    parts, bias, rows = [inputs[0]], np.zeros_like(inputs[0]), np.zeros((n, n + 1))
    for number, (layer, kind) in enumerate(sublayers(config, stack)):
        if kind == "self_attention":
            below = [*parts, bias]
        weights = {
            module: {name: np.asarray(values[layer]) for name, values in leaves.items()}
            for module, leaves in params[stack][f"{kind}_residual"].items()
        }
        skip = 1.0
        if name == "admin":
            skip = weights["shortcut"]["omega"]
        if name == "deepnorm":
            skip = (2 * config.num_decoder_layers) ** 0.25
        if name == "keel" and layer > 0:
            skip = n
        parts, bias = [skip * part for part in parts], skip * bias
        if name == "b2t" and kind == "feed_forward":
            parts = [a + b for a, b in zip(parts, [*below[:-1], 0.0], strict=True)]
            bias = bias + below[-1]
        parts.append(branches[number])
        bare = (name, number) == ("keel", 0) or (name, kind) == ("hybrid_norm", "feed_forward")
        if "post_norm" in weights and not bare:
            norm = weights["post_norm"]
            for token in range(len(bias)):
                whole = sum(part[token] for part in parts) + bias[token]
                centre = config.norm == "layer_norm"
                if centre:
                    whole = whole - np.mean(whole)
                sigma = math.sqrt(np.mean(whole**2) + config.norm_epsilon)
                for part in (*parts, bias):
                    part[token] -= np.mean(part[token]) if centre else 0.0
                    part[token] *= norm["scale"] / sigma
            bias = bias + norm.get("bias", 0.0)
        np.testing.assert_allclose(sum(parts) + bias, outputs[number], rtol=1e-4, atol=1e-4)
        rows[number, : len(parts)] = [np.std(part) / np.std(outputs[number]) for part in parts]
    return rows


@pytest.mark.parametrize(
    "config",
    [
        POST_LN,
        ADMIN,
        PRE_LN,
        *(tiny.config(residual, architecture="decoder_only") for residual in OTHERS),
    ],
    ids=lambda config: f"{config.decoder_residual}-{config.architecture}",
)
def test_dependencies_follow_the_components_through_skips_and_norms(config):
    params, observed, by_stack = measured(config)
    for stack, view in observed.items():
        beta = slow_dependency(config, params, stack, view)
        tiny.assert_close(by_stack[stack]["dependency"], beta)
        tiny.assert_close(by_stack[stack]["own_dependency"], np.diagonal(beta, 1))


def test_a_sum_that_no_norm_divides_has_no_shares():
    nothing: Any = None
    config = tiny.config("post_ln", norm="dyt")
    with pytest.raises(ValueError, match="model.norm='dyt' after the sum"):
        own_dependency(config, {}, "encoder", nothing)
    mixed = tiny.config("x0", architecture="decoder_only")
    with pytest.raises(ValueError, match="model.decoder_residual='x0' mixes"):
        dependency(mixed, {}, "decoder", nothing)
    step: Any = SimpleNamespace(model=make(config), before={}, stacks={"encoder": None})
    assert DIAGNOSTICS["dependency"](step) == {}
