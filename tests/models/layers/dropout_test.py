"""Dropout alone, and where the model drops what: masks are read off the logits.

To read them, every parameter is zero but a few, so that a branch is a constant: with RMSNorm a
logit over the logit of channel 0, which no branch touches, is the residual stream itself.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.layers.dropout import Dropout, noise

RATE = 0.25  # a multiple of 2^-32, so exact
RATES = [f"{name}dropout_rate" for name in ("", "embedding_", "attention_", "feed_forward_")]
ANCHOR = 4.0  # channel 0 of the residual stream, from a bias at its end: nothing drops that


def within(observed, expected, count):
    """Whether a fraction of `count` independent draws is as expected, to five deviations."""
    return abs(observed - expected) < 5 * (expected * (1 - expected) / count) ** 0.5


def drop(x, rate):
    y = Dropout(rate).apply({}, x, deterministic=False, rngs={"dropout": jax.random.key(0)})
    assert isinstance(y, jax.Array)
    return y


@pytest.mark.parametrize(("rate", "width"), [(0.1, 64), (0.5, 33), (0.9, 33)])
def test_entries_are_zero_or_scaled_and_the_expectation_is_kept(rate, width):
    y = np.asarray(drop(jnp.ones((500, width)), rate))
    mask = y > 0
    assert within(np.mean(mask), 1 - rate, y.size)
    np.testing.assert_allclose(y[mask], 1 / (1 - rate), rtol=1e-6)
    # Entries of a row share its random words, and entries of a column their number.
    for shift in (1, 2, 16):
        for one, other in ((mask[:, shift:], mask[:, :-shift]), (mask[shift:], mask[:-shift])):
            assert within(np.mean(one & other), (1 - rate) ** 2, one.size)


def test_gradients_pass_where_entries_pass_and_nothing_as_large_as_the_input_is_kept_for_them():
    x = jnp.ones((8, 33))
    y, pullback = jax.vjp(lambda x: drop(x, 0.5), x)
    np.testing.assert_array_equal(pullback(x)[0], y)
    assert max(np.size(leaf) for leaf in jax.tree.leaves(pullback)) <= 2 * len(x)


def test_the_bits_of_noise_are_balanced_and_independent():
    """Each of the 32, and each pair of them, over rows and columns."""
    words = jax.random.bits(jax.random.key(0), (300, 2), jnp.uint32)
    bits = np.asarray(noise(words, 700)).reshape(-1, 1) >> np.arange(32, dtype=np.uint32) & 1
    signs = 1.0 - 2.0 * bits
    means, correlations = signs.mean(axis=0), signs.T @ signs / len(signs) - np.eye(32)
    assert max(np.abs(means).max(), np.abs(correlations).max()) < 5.5 / len(signs) ** 0.5


def test_the_dtype_stays():
    assert drop(jnp.ones((8, 33), jnp.bfloat16), 0.5).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("config", "silenced"),
    tiny.every_second_long(
        [
            # Each rate by itself is seen below, where masks are read off.
            (tiny.config(**tiny.SHAPES["masked_tokens"], embedding_dropout_rate=RATE), ()),
            # In cross-attention too: there self-attention adds nothing.
            (tiny.config(attention_dropout_rate=RATE), ("encoder", "decoder")),
            (tiny.config("admin", architecture="decoder_only", **dict.fromkeys(RATES, RATE)), ()),
            (tiny.recurrent("rnnsearch", dropout_rate=RATE), ()),
            (tiny.recurrent("gnmt", embedding_dropout_rate=RATE), ()),
            (tiny.recurrent("lstm", embedding_dropout_rate=RATE), ()),
            (tiny.recurrent("lstmn", dropout_rate=RATE), ()),
            (tiny.recurrent("gru", "decoder_only", embedding_dropout_rate=RATE), ()),
        ]
    ),
)
def test_rates_drop_in_training_alone(config, silenced):
    none = {name: 0.0 for name in RATES if hasattr(config, name)}
    plain, batch = dataclasses.replace(config, **none), tiny.packed_batch()
    params = jax.tree.map(np.array, tiny.random_parameters(config))
    for stack in silenced:
        params[stack]["self_attention"]["output"][:] = 0.0
    expected, train = tiny.apply_function(config)(params, batch), tiny.train_function(config)
    assert np.array_equal(tiny.train_function(plain)(params, batch, jax.random.key(0)), expected)
    first, again, other = (train(params, batch, jax.random.key(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert np.abs(first - expected).max() > 0.01 and np.abs(first - other).max() > 0.01


def silent():
    """A configuration and parameters by which logits are (ANCHOR, 0, 0, ...); rates differ."""
    config = tiny.config(
        **tiny.SHAPES["decoder_only"], residual="pre_ln", norm="rms_norm", positions="learned",
        tied_embeddings="none", embedding_dropout_rate=0.25, attention_dropout_rate=0.125,
        feed_forward_dropout_rate=0.5,
    )  # fmt: skip
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.full(leaf.shape, path[-1].key in ("scale", "omega"), np.float32),
        tiny.random_parameters(config),
    )
    params["decoder"]["feed_forward"]["down_bias"][-1, 0] = ANCHOR
    params["logits"]["kernel"][:] = np.eye(config.d_model, config.vocab_size)
    return config, params


def stream(config, params, batch):
    """Channels 1 .. D - 1 of the residual stream (B, T, D - 1), where channel 0 is ANCHOR."""
    logits = np.asarray(tiny.train_function(config)(params, batch, jax.random.key(0)))
    return logits[..., 1 : config.d_model] / logits[..., :1] * ANCHOR


@functools.cache
def shown_in_training(config):
    """(params, batch, key) -> what the model shows of its inside."""
    apply = functools.partial(
        tiny.model(config).apply, deterministic=False, mutable=["intermediates"]
    )
    return jax.jit(lambda params, batch, key: apply(params, batch, rngs={"dropout": key})[1])


def branch_masks(config, batch, seed=0):
    """Which entries of each residual branch are kept, by its place."""
    params, batch = {"params": tiny.random_parameters(config)}, tiny.read_by(config, batch)
    by_stack = shown_in_training(config)(params, batch, jax.random.key(seed))["intermediates"]
    return {
        (stack, kind, layer): mask
        for stack, kinds in tiny.stacks(config).items()
        for kind in kinds
        for layer, mask in enumerate(np.asarray(by_stack[stack][f"{kind}_residual"]["branch"]) != 0)
    }


@pytest.mark.parametrize(
    ("shape", "schemes"),
    [
        ("encoder_decoder", [("pre_ln", "admin")]),
        pytest.param("decoder_only", [(s, s) for s in tiny.SCHEMES], marks=pytest.mark.long),
    ],
)
def test_branches_have_a_mask_each_that_all_schemes_share(shape, schemes):
    batch, sizes = tiny.packed_batch(), tiny.SHAPES[shape] | dict(dropout_rate=RATE)
    expected = branch_masks(tiny.config("post_ln", **sizes), batch)
    for mask in expected.values():
        assert within(np.mean(mask), 1 - RATE, mask.size)
    for a, b in itertools.combinations(expected.values(), 2):
        if a.shape == b.shape:
            assert within(np.mean(a == b), RATE**2 + (1 - RATE) ** 2, a.size)
    for encoder, decoder in schemes:
        residuals = dict(encoder_residual=encoder, decoder_residual=decoder)
        masks = branch_masks(tiny.config(**sizes, **residuals), batch)
        for place, mask in masks.items():
            np.testing.assert_array_equal(mask, expected[place], err_msg=f"{decoder} {place}")
    other = branch_masks(tiny.config("post_ln", **sizes), batch, seed=1)
    assert all(np.any(mask != expected[place]) for place, mask in other.items())


def test_embedding_dropout_acts_on_the_sum_of_embedding_and_position():
    config, params = silent()
    params["embedding"]["table"][:, 1:] = 0.5
    params["positions"]["table"][:, 1:] = 2.0
    rate = config.embedding_dropout_rate
    x = stream(config, params, tiny.packed_batch())
    sum_of_both = 0.5 * config.d_model**0.5 + 2.0
    np.testing.assert_allclose(x[x != 0], sum_of_both / (1 - rate), rtol=1e-5)
    assert within(np.mean(x != 0), 1 - rate, x.size)


def test_feed_forward_dropout_acts_on_hidden_units():
    config, params = silent()
    rate = config.feed_forward_dropout_rate
    feed_forward = params["decoder"]["feed_forward"]
    feed_forward["up_bias"][0] = 1.0
    feed_forward["down"][0] = np.eye(config.d_ff, config.d_model)
    feed_forward["down"][0, 0] = 0.0
    x = stream(config, params, tiny.packed_batch())
    np.testing.assert_allclose(x[x != 0], 1 / (1 - rate), rtol=1e-5)
    assert within(np.mean(x != 0), 1 - rate, x.size)


def test_attention_dropout_acts_on_weights():
    """Uniform weights on t + 1 keys of value 1: a head's output counts the keys that were kept."""
    config, params = silent()
    rate = config.attention_dropout_rate
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
    counts = np.stack([first, second]) * keys * (1 - rate)
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-4)
    assert np.all((np.round(counts) >= 0) & (np.round(counts) <= keys))
    assert within(counts.sum() / (6 * keys.sum()), 1 - rate, 6 * keys.sum())
    assert np.any(counts[0] != counts[1]) and np.any(counts[:, 0] != counts[:, 1])
