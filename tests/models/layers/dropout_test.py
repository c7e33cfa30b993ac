"""Dropout alone, and where the model drops what: masks are read off the logits.

To read them, every parameter is zero but a few, so that a branch is a constant: with RMSNorm a
logit over the logit of channel 0, which no branch touches, is the residual stream itself.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.layers.dropout import Dropout, noise

RATE = 0.25  # a multiple of 2^-32, so exact
ANCHOR = 4.0  # the embedding of every token in channel 0: a table entry of 1 times sqrt(D)
DECODER = list(itertools.product(range(2), ("self_attention", "cross_attention", "feed_forward")))
ENCODER = list(itertools.product(range(2), ("self_attention", "feed_forward")))
# Schemes by which the stream keeps what `silent` puts into it.
READABLE = ("post_ln", "pre_ln", "admin")


def within(observed, expected, count, deviations=5):
    """Whether a fraction of `count` independent draws is as expected, to so many deviations."""
    return abs(observed - expected) < deviations * (expected * (1 - expected) / count) ** 0.5


def drop(x, rate, seed=0, deterministic=False):
    rngs = {"dropout": jax.random.key(seed)}
    y = Dropout(rate).apply({}, x, deterministic=deterministic, rngs=rngs)
    assert isinstance(y, jax.Array)
    return y


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("width", [64, 33])
def test_entries_are_zero_or_scaled_and_the_expectation_is_kept(rate, width):
    y = np.asarray(drop(jnp.ones((500, width)), rate))
    kept = y > 0
    assert within(np.mean(kept), 1 - rate, y.size)
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    # Entries of a row share its random words, and entries of a column their number.
    for shift in (1, 2, 16):
        for one, other in ((kept[:, shift:], kept[:, :-shift]), (kept[shift:], kept[:-shift])):
            assert within(np.mean(one & other), (1 - rate) ** 2, one.size)


def test_gradients_pass_where_entries_pass():
    x = jnp.ones((8, 33))
    y, pullback = jax.vjp(lambda x: drop(x, 0.5), x)
    np.testing.assert_array_equal(pullback(x)[0], y)


def test_the_bits_of_noise_are_balanced_and_independent():
    """Each of the 32, and each pair of them, over rows and columns."""
    words = jax.random.bits(jax.random.key(0), (300, 2), jnp.uint32)
    bits = np.asarray(noise(words, 700)).reshape(-1, 1) >> np.arange(32, dtype=np.uint32) & 1
    signs = 1.0 - 2.0 * bits
    means, correlations = signs.mean(axis=0), signs.T @ signs / len(signs) - np.eye(32)
    assert max(np.abs(means).max(), np.abs(correlations).max()) < 5.5 / len(signs) ** 0.5


def test_nothing_as_large_as_the_input_is_kept_for_the_backward_pass():
    x = jnp.ones((8, 33))
    _, pullback = jax.vjp(lambda x: drop(x, 0.5), x)
    assert max(np.size(leaf) for leaf in jax.tree.leaves(pullback)) <= 2 * len(x)


def test_dtype_and_key():
    x = jnp.ones((8, 33), jnp.bfloat16)
    assert drop(x, 0.5).dtype == jnp.bfloat16
    assert np.array_equal(drop(x, 0.5), drop(x, 0.5))
    assert not np.array_equal(drop(x, 0.5), drop(x, 0.5, seed=1))


def test_rate_zero_and_evaluation_are_the_identity():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 33)))
    assert np.array_equal(drop(x, 0.0), x)
    assert np.array_equal(drop(x, 0.5, deterministic=True), x)


def test_in_the_model_too():
    plain = tiny.config(residual="admin")
    dropping = tiny.config(
        residual="admin", dropout_rate=0.1, embedding_dropout_rate=0.1,
        attention_dropout_rate=0.1, feed_forward_dropout_rate=0.1,
    )  # fmt: skip
    params, batch = tiny.random_parameters(plain), tiny.packed_batch()
    expected = tiny.apply_function(plain)(params, batch)
    key = jax.random.key(0)
    assert np.array_equal(tiny.train_function(plain)(params, batch, key), expected)
    assert np.array_equal(tiny.apply_function(dropping)(params, batch), expected)
    assert not np.allclose(tiny.train_function(dropping)(params, batch, key), expected, atol=0.1)


@pytest.mark.parametrize(
    ("shape", "rate", "without"),
    [
        ("masked_tokens", "embedding_dropout_rate", ()),
        ("masked_tokens", "attention_dropout_rate", ()),
        ("masked_tokens", "feed_forward_dropout_rate", ()),
        ("encoder_decoder", "attention_dropout_rate", ("encoder", "decoder")),
    ],
)
def test_each_rate_drops_by_itself_in_every_stack(shape, rate, without):
    """In cross-attention too: there self-attention adds nothing."""
    config = tiny.config(**tiny.SHAPES[shape], **{rate: RATE})
    params = jax.tree.map(np.array, tiny.random_parameters(config))
    batch = tiny.packed_batch()
    for stack in without:
        params[stack]["self_attention"]["output"][:] = 0.0
    expected = tiny.apply_function(config)(params, batch)
    found = tiny.train_function(config)(params, batch, jax.random.key(0))
    assert not np.allclose(found, expected, atol=0.01)


def silent(residual="pre_ln", **rates):
    """A configuration and parameters by which logits are the embedding (ANCHOR, 0, 0, ...)."""
    config = tiny.config(
        residual=residual, norm="rms_norm", positions="learned", tied_embeddings="none", **rates
    )
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.full(leaf.shape, path[-1].key in ("scale", "omega"), np.float32),
        tiny.random_parameters(config),
    )
    for side in ("source", "target"):
        params[f"{side}_embedding"]["table"][:, 0] = 1.0
    params["logits"]["kernel"][:] = np.eye(config.d_model, config.vocab_size)
    return config, params


def stream(config, params, batch, seed=0):
    """Channels 1 .. D - 1 of the residual stream (B, T, D - 1), where channel 0 is ANCHOR."""
    logits = np.asarray(tiny.train_function(config)(params, batch, jax.random.key(seed)))
    return logits[..., 1 : config.d_model] / logits[..., :1] * ANCHOR


def with_bias(params, stack, layer, sublayer, value=1.0):
    """The branch of one sublayer becomes `value` in every channel but the first."""
    params = jax.tree.map(np.copy, params)
    name = "down_bias" if sublayer == "feed_forward" else "output_bias"
    params[stack][sublayer][name][layer, 1:] = value
    return params


def residual_masks(residual, batch, seed=0):
    config, params = silent(residual, dropout_rate=RATE)
    masks = []
    for layer, sublayer in DECODER:
        x = stream(config, with_bias(params, "decoder", layer, sublayer), batch, seed)
        np.testing.assert_allclose(x[x != 0], 1 / (1 - RATE), rtol=1e-5)
        masks.append(x != 0)
    return masks


def test_residual_branches_have_a_mask_each_that_three_schemes_share():
    batch = tiny.packed_batch()
    masks = {residual: residual_masks(residual, batch) for residual in READABLE}
    for mask in masks["post_ln"]:
        assert within(np.mean(mask), 1 - RATE, mask.size)
    for a, b in itertools.combinations(masks["post_ln"], 2):
        assert within(np.mean(a == b), RATE**2 + (1 - RATE) ** 2, a.size)
    for residual in READABLE:
        np.testing.assert_array_equal(masks[residual], masks["post_ln"])
    other = residual_masks("post_ln", batch, seed=1)
    assert all(np.any(a != b) for a, b in zip(masks["post_ln"], other, strict=True))


def test_encoder_branches_have_a_mask_each_too():
    """Seen through one cross-attention of identity matrices on sources of a single token."""
    batch = tiny.pack([[pair] for pair in tiny.sentences((1, 8), (1, 8), (1, 8))])
    masks = {}
    for residual in READABLE:
        config, params = silent(residual, dropout_rate=RATE)
        identity = np.eye(config.d_model).reshape(config.d_model, config.num_heads, -1)
        params["decoder"]["cross_attention"]["value"][0] = identity
        params["decoder"]["cross_attention"]["output"][0] = np.moveaxis(identity, 0, -1)
        masks[residual] = [
            # Cross-attention drops entries of its own, at every position others.
            np.any(stream(config, with_bias(params, "encoder", *where, 1.0), batch) != 0, axis=1)
            for where in ENCODER
        ]
        np.testing.assert_array_equal(masks[residual], masks["post_ln"])
    for mask in masks["post_ln"]:
        assert within(np.mean(mask), 1 - RATE, mask.size)
    for a, b in itertools.combinations(masks["post_ln"], 2):
        assert within(np.mean(a == b), RATE**2 + (1 - RATE) ** 2, a.size)


@pytest.mark.long
def test_all_schemes_share_the_masks_of_branches():
    """Where branches, as the model shows them, are zero."""
    batch, expected = tiny.packed_batch(), None
    for residual in tiny.SCHEMES:
        config = tiny.config(residual, architecture="decoder_only", dropout_rate=RATE)
        apply = functools.partial(
            tiny.model(config).apply,
            deterministic=False, rngs={"dropout": jax.random.key(0)}, mutable=["intermediates"],
        )  # fmt: skip
        params = {"params": tiny.random_parameters(config)}
        _, seen = jax.jit(apply)(params, tiny.read_by(config, batch))
        branches = [
            seen["intermediates"]["decoder"][f"{kind}_residual"]["branch"]
            for kind in ("self_attention", "feed_forward")
        ]
        masks = np.stack(branches) != 0
        assert within(np.mean(masks), 1 - RATE, masks.size)
        expected = masks if expected is None else expected
        np.testing.assert_array_equal(masks, expected, err_msg=residual)


def test_embedding_dropout_acts_on_the_sum_of_embedding_and_position():
    config, params = silent(embedding_dropout_rate=RATE)
    params["target_embedding"]["table"][:] = 0.5
    params["target_embedding"]["table"][:, 0] = 0.0
    params["target_positions"]["table"][:] = 2.0
    params["target_positions"]["table"][:, 0] = 0.0
    # The anchor comes from a branch: nothing drops that.
    params["decoder"]["feed_forward"]["down_bias"][0, 0] = ANCHOR
    x = stream(config, params, tiny.packed_batch())
    sum_of_both = 0.5 * config.d_model**0.5 + 2.0
    np.testing.assert_allclose(x[x != 0], sum_of_both / (1 - RATE), rtol=1e-5)
    assert within(np.mean(x != 0), 1 - RATE, x.size)


def test_feed_forward_dropout_acts_on_hidden_units():
    config, params = silent(feed_forward_dropout_rate=RATE)
    feed_forward = params["decoder"]["feed_forward"]
    feed_forward["up_bias"][0] = 1.0
    feed_forward["down"][0] = np.eye(config.d_ff, config.d_model)
    feed_forward["down"][0, 0] = 0.0
    x = stream(config, params, tiny.packed_batch())
    np.testing.assert_allclose(x[x != 0], 1 / (1 - RATE), rtol=1e-5)
    assert within(np.mean(x != 0), 1 - RATE, x.size)


def test_attention_dropout_acts_on_weights():
    """Uniform weights on t + 1 keys of value 1: a head's output counts the keys that were kept."""
    config, params = silent(attention_dropout_rate=RATE)
    attention = params["decoder"]["self_attention"]
    attention["value_bias"][0] = 1.0
    identity = np.eye(config.d_model).reshape(config.num_heads, -1, config.d_model)
    attention["output"][0] = identity * (np.arange(config.d_model) > 0)
    batch = tiny.pack([[pair] for pair in tiny.sentences((3, 8), (3, 8), (3, 8))])
    x = stream(config, params, batch)
    keys = np.arange(1, tiny.TARGET_LENGTH + 1)
    split = config.d_model // config.num_heads - 1  # channel 0 is left out
    first, second = x[..., 0], x[..., -1]
    np.testing.assert_allclose(x[..., :split] - first[..., None], 0.0, atol=1e-5)
    np.testing.assert_allclose(x[..., split:] - second[..., None], 0.0, atol=1e-5)
    counts = np.stack([first, second]) * keys * (1 - RATE)
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
    assert np.all((np.round(counts) >= 0) & (np.round(counts) <= keys))
    assert within(counts.sum() / (6 * keys.sum()), 1 - RATE, 6 * keys.sum())
    assert np.any(counts[0] != counts[1]) and np.any(counts[:, 0] != counts[:, 1])
