"""Models that several tests look at, so that each is compiled once, and what a pass shows."""

import functools

import jax

from tests.defaults import loss_settings
from tests.models import tiny
from transformer_jax.inspection.observed import observe, output_gradient_norms
from transformer_jax.models.family import Outputs
from transformer_jax.tasks import TASKS

POST_LN = tiny.config("post_ln")
ADMIN = tiny.config("admin", architecture="decoder_only", norm="rms_norm")
PRE_LN = tiny.config("pre_ln", architecture="decoder_only")
LOSS = TASKS["translation"].bound_loss(loss_settings())
make = tiny.model


@functools.cache
def observe_function(config):
    """(params, batch) -> what `observe` returns, compiled once per configuration and shape."""

    def look(params, batch):
        return observe(make(config), params, tiny.read_by(config, batch))

    return jax.jit(look)


def forward_pass(config):
    """Random parameters, none of them neutral, and what a packed batch shows of them."""
    params = tiny.random_parameters(config)
    return params, *observe_function(config)(params, tiny.packed_batch())


def sublayers(config, stack):
    kinds = tiny.stacks(config)[stack]
    return [(layer, kind) for layer in range(2) for kind in kinds]


def mean_loss(logits, batch):
    total, weight, _ = LOSS(Outputs(logits), batch)
    return total / weight


@functools.cache
def gradient_function():
    """(params, batch) -> the norms of the outputs' gradients, and the gradient of the mean loss."""
    model = make(POST_LN)

    def loss(params, batch):
        return mean_loss(model.apply({"params": params}, batch, deterministic=True), batch)

    def gradients(params, batch):
        norms = output_gradient_norms(model, LOSS, params, batch)
        return norms, jax.grad(loss)(params, batch)

    return jax.jit(gradients)
