"""Gradients reach all that is trained, and stay finite where nothing is to be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny

TRANSFORMERS = [
    tiny.config(**tiny.SHAPES[shape], residual=residual)
    for shape, residual in [
        ("encoder_decoder", "pre_ln"),
        ("encoder_decoder", "admin"),
        ("encoder_decoder", "b2t"),
        ("decoder_only", "post_ln"),
        ("decoder_only", "residual_dual"),
        ("decoder_only", "keel"),
        ("masked_tokens", "admin"),
        ("mean_classes", "pre_ln"),
        ("mean_classes", "sandwich"),
        ("first_classes", "sub_ln"),
        ("tags", "post_ln"),
        ("tags", "rezero"),
    ]
]


@pytest.mark.parametrize("config", [*TRANSFORMERS, *tiny.RECURRENT.values()])
def test_gradients_reach_every_parameter_and_rows_of_padding_stay_finite(config):
    params = tiny.random_parameters(config)
    a, b = tiny.sentences((5, 4), (9, 8))
    batch = tiny.pack([[a], [b], []])

    def total(params, batch):
        logits = tiny.logits(config, params, batch)
        return jnp.sum(jnp.square(logits)), logits

    gradient = jax.jit(jax.grad(total, has_aux=True))
    gradients, logits = gradient(params, batch)
    assert np.all(np.isfinite(logits))
    for path, leaf in tiny.flat(gradients).items():
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path
    gradients, logits = gradient(params, tiny.pack([[], [], []]))
    assert all(np.all(np.isfinite(leaf)) for leaf in (logits, *jax.tree.leaves(gradients)))
