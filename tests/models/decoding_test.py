"""Decoding with a cache gives, token by token, the logits of the whole row at once."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny


def assert_close(found, expected):
    """Float32 sums in another order; without norms some logits are a hundred times others."""
    atol = 1e-5 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=atol)


LENGTH = tiny.TARGET_LENGTH
ROOM = LENGTH + 2  # more than is used, so that unused slots are seen to stay unseen
OTHERS = (
    dict(),
    dict(embedding_norm=True, tied_embeddings="decoder", logits_bias=True, embedding_scale=1.5),
    dict(norm="rms_norm", tied_embeddings="none", num_kv_heads=1, parameterization="ntk")
    | dict(base_width=4),
    dict(attention_score="additive", qk_norm=True),
    dict(attention_score="dot_product", num_decoder_layers=3, parameterization="completep")
    | dict(base_width=4, base_depth=1),
)
# Hypotheses of each row, and choices: every scheme once, while all else takes turns.
CASES = [
    (1 + number % 2, dict(residual=residual) | others)
    for number, (residual, others) in enumerate(
        zip(tiny.SCHEMES, tiny.with_positions(itertools.cycle(OTHERS)), strict=False)
    )
]


def recurrent(architecture):
    return [config for config in tiny.RECURRENT.values() if config.architecture == architecture]


MIXED = [(2, dict(encoder_residual="deepnorm", decoder_residual="residual_dual"))]


def inputs_only(rows):
    """A batch of inputs alone, one example a row, with a column of padding."""
    batch = tiny.pack([[(row, row)] for row in rows], max(map(len, rows)) + 1, max(map(len, rows)))
    return {name: value for name, value in batch.items() if name.startswith("inputs")}


@functools.cache
def compiled(config, room=ROOM):
    model = tiny.model(config)
    start = jax.jit(lambda p, b: model.apply({"params": p}, b, room, method="start"))
    step = jax.jit(lambda p, *state: model.apply({"params": p}, *state, method="step"))
    return start, step


def decode(config, params, inputs, targets, beams):
    """Logits of every target (N, LENGTH, V), fed one by one, and the tokens that were first."""
    start, step = compiled(config)
    first, context, cache = start(params, inputs)
    rows = inputs["inputs"].shape[0]
    assert all(leaf.shape[0] == rows for leaf in jax.tree.leaves(cache))
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=0), cache)
    tokens, steps = np.repeat(first, beams), []
    for t in range(LENGTH):
        logits, cache = step(params, context, cache, tokens, jnp.int32(t))
        assert logits.dtype == jnp.float32
        steps.append(logits)
        tokens = targets[:, t]
    return first, np.stack(steps, axis=1)


def continuations(count):
    pairs = tiny.sentences(*[(1, LENGTH)] * count, seed=1)
    return np.stack([target for _, target in pairs])


@pytest.mark.parametrize(
    ("beams", "config"),
    [(beams, tiny.config(**choices)) for beams, choices in CASES[::2] + MIXED]
    + [(2, config) for config in recurrent("encoder_decoder")],
)
def test_an_encoder_decoder_decodes_what_it_scores(beams, config):
    params = tiny.random_parameters(config)
    sources = [source for source, _ in tiny.sentences((9, 1), (4, 1), (6, 1))]
    targets = continuations(3 * beams)
    rows = [[(sources[n // beams], target)] for n, target in enumerate(targets)]
    expected = tiny.apply_function(config)(params, tiny.pack(rows))
    first, logits = decode(config, params, inputs_only(sources), targets, beams)
    np.testing.assert_array_equal(first, config.bos_id)
    assert_close(logits, expected)


@pytest.mark.parametrize(
    ("beams", "config"),
    [
        (beams, tiny.config(architecture="decoder_only", max_length=16, **choices))
        for beams, choices in CASES[1::2]
    ]
    + [(2, config) for config in recurrent("decoder_only")],
)
def test_a_decoder_continues_prompts_of_any_length(beams, config):
    """One of them bos alone, and none as long as the row: what was decoded after each prompt has
    the logits that it has in one row with the prompt."""
    params = tiny.random_parameters(config)
    bos = np.array([config.bos_id], np.int32)
    prompts = [bos] + [np.append(bos, source) for source, _ in tiny.sentences((3, 1), (5, 1))]
    targets = continuations(3 * beams)
    documents = [np.append(prompts[n // beams][1:], target) for n, target in enumerate(targets)]
    whole = tiny.pack([[(document, document)] for document in documents], 15, 15)
    rows = tiny.apply_function(config)(params, whole)
    lengths = [len(prompts[n // beams]) for n in range(len(targets))]
    expected = np.stack([rows[n, P - 1 : P - 1 + LENGTH] for n, P in enumerate(lengths)])
    first, logits = decode(config, params, inputs_only(prompts), targets, beams)
    np.testing.assert_array_equal(first, [prompt[-1] for prompt in prompts])
    assert_close(logits, expected)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_rows_of_several_hypotheses_are_decoded_in_bfloat16(architecture):
    """XLA has fewer products of it, on CPU, than of float32."""
    config = tiny.config(architecture=architecture, max_length=16)
    params = tiny.random_parameters(config)
    bos = np.array([config.bos_id], np.int32)
    sources = [np.append(bos, source) for source, _ in tiny.sentences((6, 1), (4, 1))]
    targets = continuations(4)
    exact, rounded = (
        decode(dataclasses.replace(config, dtype=dtype), params, inputs_only(sources), targets, 2)[
            1
        ]
        for dtype in ("float32", "bfloat16")
    )
    error = np.abs(rounded - exact).max()
    assert 0 < error < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize(
    "config",
    [
        tiny.config(architecture=architecture, max_length=16, **choices)
        for architecture in ("encoder_decoder", "decoder_only")
        for choices in (
            {},
            {"attention_score": "additive", "positions": "rotary"},
            {"positions": "distance"},
            {"positions": "relative", "num_kv_heads": 1},
        )
    ]
    + recurrent("encoder_decoder")
    + recurrent("decoder_only"),
)
def test_a_hypothesis_sees_its_ancestors_in_whatever_rows_they_are(config):
    """Hypotheses continue others of their sentence at each place, and no cache is moved. At
    first it has room for three tokens."""
    beams, params = 3, tiny.random_parameters(config)
    start, step = compiled(config, room=3)
    bos = np.array([config.bos_id], np.int32)
    sources = [np.append(bos, source) for source, _ in tiny.sentences((3, 1), (5, 1))]
    inputs = inputs_only(sources)
    first, context, cache = start(params, inputs)
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=0), cache)
    generator = np.random.default_rng(0)
    ancestors = np.zeros((len(sources), beams, ROOM), np.int32)
    history = np.zeros((len(sources), beams, 0), np.int32)
    tokens = np.repeat(first, beams)
    for t in range(LENGTH):
        if t == 3:
            cache = cache.enlarged(ROOM - 3)
        ancestors[:, :, t] = np.arange(beams)
        logits, cache = step(params, context, cache, tokens, jnp.int32(t), ancestors)
        if t:
            targets = history.reshape(-1, t)
            targets = np.pad(targets, [(0, 0), (0, LENGTH - t)], constant_values=5)
            _, expected = decode(config, params, inputs, targets, beams)
            assert_close(logits, expected[:, t])
        parents = generator.integers(0, beams, (len(sources), beams, 1))
        ancestors = np.take_along_axis(ancestors, parents, axis=1)
        new = generator.integers(4, config.vocab_size, parents.shape)
        history = np.append(np.take_along_axis(history, parents, axis=1), new, axis=2)
        tokens = new.reshape(-1)


def test_a_decoder_looks_back_no_further_than_its_context():
    """With one layer, the logits are those of the last few tokens alone: rotary positions count
    from anywhere, and what lies further back is as if it were not there."""
    sizes = dict(architecture="decoder_only", num_decoder_layers=1, positions="rotary")
    config, short = tiny.config(**sizes), tiny.config(**sizes, context_length=3)
    params, targets = tiny.random_parameters(config), continuations(2)
    bos = np.array([config.bos_id], np.int32)
    prompts = [np.append(bos, source) for source, _ in tiny.sentences((2, 1), (5, 1))]
    _, logits = decode(short, params, inputs_only(prompts), targets, 1)
    for prompt, target, found in zip(prompts, targets, logits, strict=True):
        tokens = np.concatenate([prompt, target])
        for t in range(LENGTH):
            end = len(prompt) + t
            seen = tokens[max(end - 3, 0) : end]
            _, expected = decode(config, params, inputs_only([seen]), target[None], 1)
            assert_close(found[t], expected[0, 0])


@pytest.mark.parametrize(
    "config",
    [tiny.config(), tiny.config(architecture="decoder_only")]
    + recurrent("encoder_decoder")
    + recurrent("decoder_only"),
)
def test_a_row_without_a_prompt_stays_finite_and_disturbs_nobody(config):
    params, targets = tiny.random_parameters(config), continuations(2)
    (source, _), (other, _) = tiny.sentences((5, 1), (5, 1), seed=2)
    empty = inputs_only([source, other])
    for name in empty:
        empty[name][1] = 0
    _, expected = decode(config, params, inputs_only([source, other]), targets, 1)
    _, logits = decode(config, params, empty, targets, 1)
    np.testing.assert_array_equal(logits[0], expected[0])
    assert np.all(np.isfinite(logits[1]))
