"""Vectors of texts, and the dropout of the head of labels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.tiny import assert_close
from transformer_jax.models.layers.heads import LabelHead


@pytest.mark.parametrize(
    ("pooling", "residual"), [("mean", "pre_ln"), ("first", "post_ln"), ("pooler", "post_ln")]
)
def test_embed_equals_the_pooled_vectors_of_a_slow_encoder(pooling, residual):
    config = tiny.config(
        **tiny.SHAPES["tags"], pooling=pooling, residual=residual, positions="rotary"
    )
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    expected = reference.embed(params, batch, config)
    apply = jax.jit(tiny.model(config).apply, static_argnames="method")
    x = apply({"params": params}, tiny.read_by(config, batch), method="embed")
    for a, b in zip(reference.by_example(batch, "inputs", x), expected, strict=True):
        assert_close(a, np.tile(b, (len(a), 1)))


def test_labels_are_read_after_dropout():
    """With an identity for a kernel, the logits are what dropout leaves."""
    sizes = tiny.SHAPES["tags"] | dict(num_labels=16, dropout_rate=0.25)
    head = LabelHead(tiny.config(**sizes))
    params = {"labels": jnp.eye(16), "labels_bias": jnp.zeros(16)}
    x = jnp.ones((4, 8, 16))

    def apply(**settings):
        outputs: Any = head.apply({"params": params}, x, None, **settings)
        return np.asarray(outputs.logits())

    logits = apply(deterministic=False, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(logits[logits != 0], 1 / 0.75, rtol=1e-6)
    # Five standard deviations of the mean of that many draws.
    assert abs(np.mean(logits == 0) - 0.25) < 5 * (0.25 * 0.75 / logits.size) ** 0.5
    np.testing.assert_array_equal(apply(deterministic=True), x)
