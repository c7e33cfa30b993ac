"""Gradients reach all that is trained, and stay finite where nothing is to be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny

MORE = dict(qk_norm=True, attention_score="additive", embedding_norm=True, activation="swiglu")
TRANSFORMERS = [
    tiny.config(**tiny.SHAPES[shape], residual=residual, **changes)
    for residual, shape, changes in [
        ("pre_ln", "encoder_decoder", MORE | dict(positions="learned")),
        ("b2t", "encoder_decoder", dict(tied_embeddings="none", logits_bias=True)),
        ("post_ln", "decoder_only", dict(positions="distance")),
        ("residual_dual", "decoder_only", dict(num_kv_heads=1)),
        ("keel", "decoder_only", dict(positions="relative")),
        ("admin", "masked_tokens", MORE),
        ("sandwich", "mean_classes", {}),
        ("sub_ln", "first_classes", {}),
        ("rezero", "tags", dict(norm="rms_norm")),
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
