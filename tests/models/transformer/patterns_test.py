"""Layers of different kinds in one scan: its gradients, its program and what it is counted as.

Its logits are compared with NumPy in shapes_test.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.models import tiny
from tests.models.remat_test import gradient, shapes
from transformer_jax.inspection.flops import product_flops
from transformer_jax.models.layers.kernels import splash
from transformer_jax.models.transformer.config import pattern

LAYERS = 4  # the period is no divisor of the depth
PERIOD: dict[str, Any] = dict(
    layer_pattern=("window", "unturned", "full"), window=3, window_rotary_base=7.0
)
FULL: dict[str, Any] = dict(layer_pattern=("full",), window=None, window_rotary_base=None)
SHAPE = {"decoder": "decoder_only", "encoder": "masked_tokens"}


def config_of(stack="decoder", **changes):
    """Without norms, so that its programs are small."""
    sizes = {f"num_{stack}_layers": LAYERS, "positions": "rotary"}
    return tiny.config("t_fixup", **(tiny.SHAPES[SHAPE[stack]] | sizes | PERIOD | changes))


@pytest.mark.long
@pytest.mark.parametrize(
    ("stack", "changes"),
    [
        ("encoder", dict(remat="full")),
        ("encoder", dict(attention_kernel="splash")),
        ("decoder", dict(remat="hidden", attention_kernel="splash")),
    ],
)
def test_recomputing_and_another_kernel_change_nothing(monkeypatch, stack, changes):
    """Neither logits nor gradients, at real tokens."""
    interpreted = functools.partial(splash.splash_attention, interpret=True)
    monkeypatch.setattr(splash, "splash_attention", interpreted)
    plain, batch = config_of(stack), tiny.packed_batch()
    params = tiny.random_parameters(plain, deviation=0.1)
    real = batch[f"{tiny.side_of_logits(plain)}_segment_ids"] > 0

    def result(config):
        def loss(params):
            logits = tiny.logits(config, params, batch)
            return jnp.sum(jnp.square(logits), where=real[..., None]), logits[real]

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    jax.tree.map(tiny.assert_close, result(config_of(stack, **changes)), result(plain))


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
