"""Vectors of texts, and the dropout of the head of labels."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from transformer_jax.models.layers.heads import LabelHead, pool
from transformer_jax.models.layers.masks import segment_mask

# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def vectors(config, params, batch):
    """The vectors of every text of the batch, at each of its tokens."""
    inputs = tiny.read_by(config, batch)
    x = tiny.model(config).apply({"params": params}, inputs, method="embed")
    return reference.by_example(batch, "inputs", x)


@pytest.mark.parametrize(("pooling", "residual"), [("mean", "pre_ln"), ("first", "post_ln")])
def test_embed_equals_the_pooled_vectors_of_a_slow_encoder(pooling, residual):
    config = tiny.config(
        **tiny.SHAPES["tags"], pooling=pooling, residual=residual, positions="rotary"
    )
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    expected = reference.embed(params, batch, config)
    for a, b in zip(vectors(config, params, batch), expected, strict=True):
        assert_close(a, np.tile(b, (len(a), 1)))


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_of_packed_texts_equal_unpacked(pooling):
    config = tiny.config(**tiny.SHAPES["tags"], pooling=pooling)
    params = tiny.random_parameters(config)
    pairs = tiny.sentences((4, 3), (3, 4), (2, 1))
    packed = vectors(config, params, tiny.pack([pairs]))
    alone = vectors(config, params, tiny.pack([[pair] for pair in pairs]))
    for a, b in zip(packed, alone, strict=True):
        assert_close(a, b)


def test_a_pooled_vector_stands_for_its_own_text_alone():
    """Two texts and padding, which keeps what stands at it, or nothing."""
    batch = tiny.pack([tiny.sentences((2, 1), (3, 1))], source_length=7)
    segments, positions = batch["inputs_segment_ids"], batch["inputs_positions"]
    x = np.random.default_rng(0).normal(size=(1, 7, 4)).astype(np.float32)
    mask = segment_mask(jnp.asarray(segments), jnp.asarray(segments))
    mean = pool(jnp.asarray(x), mask, jnp.asarray(positions), "mean")
    first = pool(jnp.asarray(x), mask, jnp.asarray(positions), "first")
    expected = [x[0, :2].mean(0)] * 2 + [x[0, 2:5].mean(0)] * 3 + [np.zeros(4)] * 2
    np.testing.assert_allclose(mean[0], np.stack(expected), rtol=1e-6)
    np.testing.assert_array_equal(first[0], x[0, [0, 0, 2, 2, 2, 5, 6]])


def test_labels_are_read_after_dropout():
    """With an identity for a kernel, the logits are what dropout leaves."""
    head = LabelHead(size=16, dtype=jnp.dtype("float32"), norm="layer_norm", dropout_rate=0.25)
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
