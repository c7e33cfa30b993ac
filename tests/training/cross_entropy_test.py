"""Cross-entropy against a slow reading, and in chunks against that of whole logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from tests.training.reference import SETTINGS, V, make_case, reference
from transformer_jax.models.layers.embeddings import Unprojected
from transformer_jax.training import cross_entropy as losses
from transformer_jax.training.cross_entropy import cross_entropy

compiled = jax.jit(cross_entropy, static_argnums=3)


@pytest.mark.parametrize("settings", [(0.0, 0.0), (0.1, 0.0), (0.3, 1e-2)])
def test_equals_the_reference(settings):
    logits, targets, weights = make_case()
    targets[0, 0] = np.argmax(logits[0, 0])  # at least one is right
    logits[0, 1], logits[1, 0, targets[1, 0]] = 0.0, logits[1, 0].max()  # all alike, and one of two
    sums = compiled(logits, targets, weights, loss_settings(*settings))
    expected = reference(logits, targets, weights, *settings)
    assert sums.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)


def test_gradient_equals_automatic_differentiation():
    logits, targets, weights = make_case()

    def plain(logits):
        log_p = jax.nn.log_softmax(logits)
        wanted = 0.9 * jax.nn.one_hot(targets, V) + 0.1 / V
        z = jax.nn.logsumexp(logits, axis=-1)
        return jnp.sum(weights * (-jnp.sum(wanted * log_p, axis=-1) + 0.01 * z**2))

    def ours(logits):
        return cross_entropy(logits, targets, weights, SETTINGS)["loss"]

    gradient, expected = (jax.jit(jax.grad(loss))(logits) for loss in (ours, plain))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_large_logits_stay_finite():
    logits = np.full((1, 1, V), -1e4, np.float32)
    logits[0, 0, 2] = 1e4
    sums = compiled(logits, np.array([[2]]), np.ones((1, 1)), loss_settings(0.0))
    assert sums == {"loss": 0.0, "token_loss": 0.0, "accuracy": 1.0}


# In chunks

SIZE, D = (6, 9), 5  # rows and length, whose product does not divide into chunks


def random(*shape, seed=0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def some(share, size):
    """Weights, of which about a share is not 0."""
    mask = np.random.default_rng(1).random(size) < share
    return jnp.asarray(mask * np.random.default_rng(2).uniform(1, 2, size), jnp.float32)


def sums_and_gradients(outputs):
    """Of each share of the tokens."""
    size = outputs.x.shape[:2]
    targets = jnp.asarray(np.random.default_rng(3).integers(V, size=size))

    def loss(outputs, weights):
        sums = cross_entropy(outputs, targets, weights, SETTINGS)
        return 3.0 * sums["loss"], sums

    @jax.jit
    def compute(outputs, weights):
        (_, sums), gradient = jax.value_and_grad(loss, has_aux=True)(outputs, weights)
        return sums, gradient, loss(outputs, weights)[1]

    return {share: compute(outputs, some(share, size)) for share in (0.0, 0.15, 1.0)}


@pytest.mark.parametrize(
    ("size", "dtype", "bias", "softcap", "tolerance", "parts"),
    [
        (SIZE, "float32", None, None, 1e-5, {}),
        (SIZE, "float32", random(V), 2.0, 1e-5, {}),
        (SIZE, "bfloat16", random(V), None, 2**-8, {}),
        (SIZE, "float32", None, None, 1e-5, {"batch": 2, "length": 3}),
        # About as many tokens as chunks, or fewer
        *(((1, length), "float32", None, None, 1e-5, {}) for length in (1, 3, 4, 8, 9)),
    ],
)
def test_chunks_give_the_sums_and_gradients_of_whole_logits(
    monkeypatch, size, dtype, bias, softcap, tolerance, parts
):
    """parts: of rows and length, that devices share."""
    x, table = random(*size, D).astype(dtype), random(V, D, seed=4)
    outputs = Unprojected(x, table, bias, softcap)
    whole = jax.device_get(sums_and_gradients(outputs))
    monkeypatch.setattr(losses, "LARGE", 0)
    monkeypatch.setattr(losses, "shards", lambda axis, size: parts.get(axis, 1))
    in_chunks = jax.device_get(sums_and_gradients(outputs))

    def equal(path, leaf, expected):
        assert leaf.dtype == expected.dtype
        np.testing.assert_allclose(
            leaf.astype(np.float32),
            expected.astype(np.float32),
            rtol=tolerance,
            atol=tolerance * float(np.max(np.abs(expected))),
            err_msg=jax.tree_util.keystr(path),
        )

    assert jax.tree.structure(in_chunks) == jax.tree.structure(whole)
    jax.tree_util.tree_map_with_path(equal, in_chunks, whole)


def test_tokens_without_a_weight_are_computed_in_no_more_than_their_chunk(monkeypatch):
    """NaN at such tokens spoils the sums of the first chunk, to which the others do not belong."""
    monkeypatch.setattr(losses, "LARGE", 0)
    weights = jnp.zeros((losses.CHUNKS, 4)).at[2:4].set(jnp.array([1.0, 0.0, 0.0, 1.0]))
    targets = jnp.zeros(weights.shape, jnp.int32)

    def loss(x):
        outputs = Unprojected(x, random(V, D))
        return cross_entropy(outputs, targets, weights, loss_settings(0.1))["loss"]

    # A chunk holds 4 tokens, which are the chosen ones.
    x = jnp.where(weights[..., None] > 0, random(losses.CHUNKS, 4, D), jnp.nan)
    value, gradient = jax.jit(jax.value_and_grad(loss))(x)
    assert np.isfinite(value)
    np.testing.assert_array_equal(np.any(np.asarray(gradient) != 0, axis=-1), weights > 0)


def test_large_logits_are_never_held_whole():
    """Neither their gradient."""
    rows, length, vocab_size = 8, 64, 2**14  # 32 MiB
    outputs = Unprojected(jnp.zeros((rows, length, D)), jnp.zeros((vocab_size, D)))
    targets, weights = jnp.zeros((rows, length), jnp.int32), jnp.ones((rows, length))

    def loss(outputs):
        return cross_entropy(outputs, targets, weights, loss_settings(0.1))["loss"]

    memory: Any = jax.jit(jax.grad(loss)).lower(outputs).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * rows * length * vocab_size / 2
