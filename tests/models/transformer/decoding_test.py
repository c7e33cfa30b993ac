"""Decoding with a cache gives, token by token, the logits of the whole row at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import tiny
from transformer_jax.models.transformer.shapes import MODELS

# Float32 sums in another order.
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

LENGTH = tiny.TARGET_LENGTH
ROOM = LENGTH + 2  # more than is used, so that unused slots are seen to stay unseen
CASES = [  # hypotheses of each row, and choices
    (2, dict(residual="post_ln")),
    (2, dict(residual="admin", positions="rotary", embedding_norm=True)),
    (1, dict(residual="pre_ln", positions="learned", norm="rms_norm", tied_embeddings="none")),
    (2, dict(residual="sub_ln", positions="rotary", qk_norm=True)),
]
ENCODER_DECODER = [
    (1, dict(residual="b2t", attention_score="dot_product")),
    (2, dict(encoder_residual="deepnorm", decoder_residual="residual_dual")),
]
DECODER = [
    (2, dict(residual="keel", attention_score="additive", qk_norm=True)),
    (1, dict(residual="residual_dual", num_decoder_layers=3)),
    (1, dict(residual="rezero", positions="learned")),
    (2, dict(residual="depth_scaled", num_decoder_layers=3)),
]


def inputs_only(rows):
    """A batch of inputs alone, one example a row, with a column of padding."""
    batch = tiny.pack([[(row, row)] for row in rows], max(map(len, rows)) + 1, max(map(len, rows)))
    return {name: value for name, value in batch.items() if name.startswith("inputs")}


@functools.cache
def compiled(config):
    model = MODELS[config.architecture](config)
    start = jax.jit(lambda p, b: model.apply({"params": p}, b, ROOM, method="start"))
    step = jax.jit(lambda p, *state: model.apply({"params": p}, *state, method="step"))
    return start, step


def decode(config, params, inputs, targets, beams):
    """Logits of every target (N, LENGTH, V), fed one by one, and the tokens that were first."""
    start, step = compiled(config)
    first, context, cache = start(params, inputs)
    rows = inputs["inputs"].shape[0]
    assert all(x.shape[:2] == (config.num_decoder_layers, rows) for x in jax.tree.leaves(cache))
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=1), cache)
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


@pytest.mark.parametrize(("beams", "choices"), CASES + ENCODER_DECODER)
def test_an_encoder_decoder_decodes_what_it_scores(beams, choices):
    config = tiny.config(**choices)
    params = tiny.random_parameters(config)
    sources = [source for source, _ in tiny.sentences((9, 1), (4, 1), (6, 1))]
    targets = continuations(3 * beams)
    rows = [[(sources[n // beams], target)] for n, target in enumerate(targets)]
    expected = tiny.apply_function(config)(params, tiny.pack(rows))
    first, logits = decode(config, params, inputs_only(sources), targets, beams)
    np.testing.assert_array_equal(first, config.bos_id)
    assert_close(logits, expected)


@pytest.mark.parametrize(("beams", "choices"), CASES + DECODER)
def test_a_decoder_continues_prompts_of_any_length(beams, choices):
    """One of them bos alone, and none as long as the row: what was decoded after each prompt has
    the logits that it has in one row with the prompt."""
    config = tiny.config(architecture="decoder_only", max_length=16, **choices)
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


def test_a_decoder_starts_from_bos_alone_in_rows_of_one_token():
    config = tiny.config(architecture="decoder_only", positions="rotary")
    params = tiny.random_parameters(config)
    targets = continuations(3)
    expected = tiny.apply_function(config)(params, tiny.pack([[(row, row)] for row in targets]))
    bos = np.full((3, 1), config.bos_id, np.int32)
    inputs = {"inputs": bos, "inputs_segment_ids": bos * 0 + 1, "inputs_positions": bos * 0}
    first, logits = decode(config, params, inputs, targets, 1)
    np.testing.assert_array_equal(first, config.bos_id)
    assert_close(logits, expected)


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_a_row_without_a_prompt_stays_finite_and_disturbs_nobody(architecture):
    config = tiny.config(architecture=architecture)
    params, targets = tiny.random_parameters(config), continuations(2)
    (source, _), (other, _) = tiny.sentences((5, 1), (5, 1), seed=2)
    empty = inputs_only([source, other])
    for name in empty:
        empty[name][1] = 0
    _, expected = decode(config, params, inputs_only([source, other]), targets, 1)
    _, logits = decode(config, params, empty, targets, 1)
    np.testing.assert_array_equal(logits[0], expected[0])
    assert np.all(np.isfinite(logits[1]))
