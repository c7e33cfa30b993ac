"""Layers of different kinds in one scan, against a loop over layers that are each of one kind."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.remat_test import gradient, shapes
from transformer_jax.inspection.flops import product_flops
from transformer_jax.models.layers.kernels import splash
from transformer_jax.models.stacks import Vectors
from transformer_jax.models.transformer.config import pattern
from transformer_jax.models.transformer.stacks import Layers

LAYERS, LENGTH = 4, 12  # the period is no divisor of the depth
PERIOD: dict[str, Any] = dict(
    layer_pattern=("window", "unturned", "full"), window=3, window_rotary_base=7.0
)
FULL: dict[str, Any] = dict(layer_pattern=("full",), window=None, window_rotary_base=None)
SHAPE = {"decoder": "decoder_only", "encoder": "masked_tokens"}


def config_of(stack="decoder", **changes):
    """Without norms, so that a stack is its layers and nothing else, and its programs are small."""
    sizes = {f"num_{stack}_layers": LAYERS, "positions": "rotary"}
    return tiny.config("t_fixup", **(tiny.SHAPES[SHAPE[stack]] | sizes | PERIOD | changes))


class Alone(nn.Module):
    """A stack without a model."""

    config: Any
    stack: Any

    def setup(self):
        self.layers = Layers(self.config, self.stack)

    def __call__(self, inputs):
        return self.layers(inputs, deterministic=True)[0].x


def one_by_one(config, stack):
    """A config for each layer of a stack, in which masks and rotations are static."""
    for number in range(LAYERS):
        kind = config.layer_pattern[number % len(config.layer_pattern)]
        changes = {"layer_pattern": (kind,), f"num_{stack}_layers": 1}
        changes = ({} if kind == "window" else FULL) | changes
        yield dataclasses.replace(config, **changes), slice(number, number + 1)


def result(config, stack, parts):
    """Gradients of a sum of what leaves a stack at real tokens, and this; of two packed texts, and
    of one and padding.

    parts: the stacks that it is made of, each with its layers.
    """
    segments = jnp.array([[1] * 7 + [2] * 5, [1] * 9 + [0] * 3])
    places = segments, jnp.array([[*range(7), *range(5)], [*range(LENGTH)]])
    generator = np.random.default_rng(1)
    x, weights = generator.normal(size=(2, *segments.shape, config.d_model)).astype(np.float32)
    params = {stack: tiny.random_parameters(config, deviation=0.1)[stack]}

    @functools.partial(jax.jit, static_argnums=0)
    def leaving(part, params, x):
        return Alone(part, stack).apply({"params": params}, Vectors(x, *places))

    def loss(params, x):
        for part, layers in parts:
            x = leaving(part, jax.tree.map(lambda leaf, layers=layers: leaf[layers], params), x)
        x = jnp.where(segments[..., None] > 0, x, 0.0)
        return jnp.sum(weights * x), x

    return jax.grad(loss, (0, 1), has_aux=True)(params, x)


@functools.cache
def expected(stack):
    config = config_of(stack)
    return result(config, stack, list(one_by_one(config, stack)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("decoder", {}),
        ("encoder", dict(remat="full")),
        ("decoder", dict(remat="hidden", attention_kernel="splash")),
        ("encoder", dict(attention_kernel="splash")),
    ],
)
def test_the_scan_gives_what_a_loop_over_layers_gives(monkeypatch, stack, changes):
    interpreted = functools.partial(splash.splash_attention, interpret=True)
    monkeypatch.setattr(splash, "splash_attention", interpreted)
    config = config_of(stack, **changes)
    outputs = result(config, stack, [(config, slice(None))])
    jax.tree.map(tiny.assert_close, outputs, expected(stack))


@pytest.mark.parametrize(
    "changes",
    [
        dict(window=2),
        dict(window=4),
        dict(layer_pattern=("unturned", "full", "window")),
        dict(layer_pattern=("window", "full", "full")),
        dict(layer_pattern=("full", "unturned", "full"), window=None, window_rotary_base=None),
        dict(window_rotary_base=None),
        dict(rotary_base=7.0, window_rotary_base=10_000.0),
    ],
)
def test_another_pattern_is_another_model(changes):
    """So that comparisons with a slow model see a window that is off by one, and the like."""
    config, batch = config_of(), tiny.packed_batch()
    params = tiny.random_parameters(config)
    logits = tiny.apply_function(config)(params, batch)
    (ours, *_) = reference.by_example(batch, "targets", logits)[-1:]
    other = reference.forward(params, batch, dataclasses.replace(config, **changes))[-1]
    assert np.abs(ours - other).max() > 1e-2 * np.abs(ours).max()


def test_layers_that_are_alike_make_the_program_of_one_kind():
    def program(**changes):
        config = config_of(**(FULL | changes))
        return str(jax.make_jaxpr(gradient(config))(*shapes(config)))

    assert program(layer_pattern=("full", "full")) == program()
    for kind in ("window", "unturned", "window_unturned"):
        window = 3 if "window" in kind else None
        config = config_of(layer_pattern=(kind,), window=window, window_rotary_base=None)
        assert pattern(config, "decoder").arrays() == (None, None)


@pytest.mark.parametrize(("kernel", "remat"), [("xla", "none"), ("splash", "hidden")])
def test_each_layer_counts_as_one_that_sees_all(kernel, remat):
    """The larger of two kernels, whose results are kept through the choice between them."""

    def products(**changes):
        config = config_of(attention_kernel=kernel, remat=remat, **changes)
        return product_flops(jax.jit(gradient(config)).trace(*shapes(config)))

    assert products() == products(**FULL)
