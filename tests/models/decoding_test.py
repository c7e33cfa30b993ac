"""Decoding with a cache gives, token by token, the logits of the whole row at once."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.models import tiny
from transformer_jax.models.transformer.stacks import Layers


def assert_close(logits, expected):
    """Float32 sums in another order; without norms some logits are a hundred times others."""
    atol = 1e-5 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=atol)


LENGTH = tiny.TARGET_LENGTH
BOS = tiny.SIZES["bos_id"]
PROMPTS = [np.append([BOS], ids).astype(np.int32) for ids in ([], [7, 5, 1], [9, 4, 4, 6, 1])]
ROOM = LENGTH + 2  # more than is used, so that unused slots are seen to stay unseen
OTHERS = (
    dict(),
    dict(embedding_norm=True, tied_embeddings="decoder", logits_bias=True, embedding_scale=1.5),
    dict(norm="rms_norm", tied_embeddings="none", num_kv_heads=1, parameterization="ntk")
    | dict(base_width=4),
    dict(attention_score="additive", qk_norm=True, norm="derf"),
    dict(attention_score="dot_product", parameterization="completep", base_width=4, base_depth=1),
)
OF_ATTENTION = (
    dict(attention_score="additive", positions="rotary", attention_bias="inward")
    | dict(rotary_fraction=0.5, rotary_scaling=("linear", "factor=3"))
    | dict(attention_weights="sink", attention_gate="head", num_heads=4, num_kv_heads=2),
    dict(positions="distance", attention_weights="off_by_one"),
    dict(positions="relative_by_layer", layer_pattern=("window", "full"), window=3)
    | dict(attention_weights="sigmoid", attention_gate="entry", num_heads=4, num_kv_heads=2),
    dict(
        positions="learned", qk_norm=True, qk_norm_over="heads", layer_pattern=("window",), window=2
    )
    | dict(attention_softcap=0.5, logits_softcap=2.0, attention_weights="relu"),
    dict(positions="rotary", layer_pattern=("window", "unturned", "full"), window=3)
    | dict(window_rotary_base=50.0, num_decoder_layers=4),
)


def cases():
    """Hypotheses of each prompt, 3 of which are those of a beam, and a config: every scheme once,
    while all else takes turns, the first with what attention can be; and all recurrent models."""
    others = tiny.with_positions(itertools.cycle(OTHERS))
    choices = itertools.chain(OF_ATTENTION, others)
    for number, (residual, choice) in enumerate(zip(tiny.SCHEMES, choices, strict=False)):
        shape = ("encoder_decoder", "decoder_only", "decoder_only")[number % 3]
        mixed = dict(encoder_residual="deepnorm", architecture=shape, max_length=16)
        beams = 3 if number < len(OF_ATTENTION) else 1 + number // 2 % 2
        yield beams, tiny.config(residual, **mixed, **choice)
    yield from ((3, config) for config in RECURRENT)


RECURRENT = [config for config in tiny.RECURRENT.values() if config.architecture != "encoder_only"]


def inputs_only(rows):
    """A batch of inputs alone, one example a row, with a column of padding."""
    batch = tiny.pack([[(row, row)] for row in rows], max(map(len, rows)) + 1, max(map(len, rows)))
    return {name: value for name, value in batch.items() if name.startswith("inputs")}


@functools.cache
def compiled(config):
    model = tiny.model(config)
    start = jax.jit(
        lambda p, b, room: model.apply({"params": p}, b, room, method="start"), static_argnums=2
    )
    step = jax.jit(lambda p, *state: model.apply({"params": p}, *state, method="step"))
    return start, step


def decode(config, params, inputs, targets):
    """Logits of every target (N, LENGTH, V), fed one by one, as many for each prompt."""
    start, step = compiled(config)
    first, context, cache = start(params, inputs, ROOM)
    rows = len(targets) // len(inputs["inputs"])
    cache = jax.tree.map(lambda leaf: np.repeat(leaf, rows, axis=0), cache)
    tokens, logits = np.repeat(first, rows), []
    for t in range(targets.shape[1]):
        step_logits, cache = step(params, context, cache, tokens, np.int32(t))
        tokens = targets[:, t]
        logits.append(step_logits)
    return np.stack(logits, axis=1)


def scored(config, params, prompts, targets):
    """Logits of every target (N, LENGTH, V) behind its prompt, in a whole row at once."""
    apply = tiny.apply_function(config)
    if config.architecture == "encoder_decoder":
        pairs = zip(prompts, targets, strict=True)
        return np.asarray(apply(params, tiny.pack([[pair] for pair in pairs])))
    documents = [np.append(p[1:], target) for p, target in zip(prompts, targets, strict=True)]
    batch = tiny.pack([[(document, document)] for document in documents], 15, 15)
    rows = np.asarray(apply(params, batch))
    ends = [len(prompt) - 1 for prompt in prompts]
    return np.stack([row[end : end + LENGTH] for row, end in zip(rows, ends, strict=True)])


def continuations(count):
    pairs = tiny.sentences(*[(1, LENGTH)] * count, seed=1)
    return np.stack([target for _, target in pairs])


@pytest.mark.parametrize(("beams", "config"), tiny.every_second_long(cases()))
def test_what_is_decoded_has_the_logits_of_a_whole_row(beams, config):
    """After prompts of any length, of which one is bos alone, and one is nothing at all: that stays
    finite and disturbs nobody. Hypotheses of a beam continue others of their sentence at each
    place, and no cache is moved; at first it has room for three tokens.
    """
    params, prompts = tiny.random_parameters(config), [*PROMPTS, np.zeros(0, np.int32)]
    start, step = compiled(config)
    first, context, cache = start(params, inputs_only(prompts), 3 if beams == 3 else ROOM)
    alone = config.architecture == "decoder_only"
    np.testing.assert_array_equal(first[:-1], [p[-1] if alone else config.bos_id for p in PROMPTS])
    assert all(leaf.shape[0] == len(prompts) for leaf in jax.tree.leaves(cache))
    cache = jax.tree.map(lambda leaf: np.repeat(leaf, beams, axis=0), cache)
    generator, tokens = np.random.default_rng(0), np.repeat(first, beams)
    ancestors = np.zeros((len(prompts), beams, ROOM), np.int32)
    history = np.full((len(prompts), beams, LENGTH), 5, np.int32)
    histories, logits = [], []
    for t in range(LENGTH):
        if t == beams == 3:
            cache = cache.enlarged(ROOM - 3)
        ancestors[:, :, t] = np.arange(beams)
        of_beam = [ancestors] if beams == 3 else []
        step_logits, cache = step(params, context, cache, tokens, np.int32(t), *of_beam)
        assert step_logits.dtype == jnp.float32 and np.all(np.isfinite(step_logits))
        histories.append(history[:-1].reshape(-1, LENGTH))
        logits.append(np.asarray(step_logits)[:-beams])
        if beams == 3:
            parents = generator.integers(0, beams, (len(prompts), beams, 1))
            ancestors = np.take_along_axis(ancestors, parents, axis=1)
            history = np.take_along_axis(history, parents, axis=1)
        tokens = generator.integers(4, config.vocab_size, len(tokens))
        history = history.copy()
        history[:, :, t] = tokens.reshape(-1, beams)
    of_rows = [prompt for _ in range(LENGTH) for prompt in PROMPTS for _ in range(beams)]
    expected = scored(config, params, of_rows, np.concatenate(histories))
    for t, (step_logits, whole) in enumerate(zip(logits, np.split(expected, LENGTH), strict=True)):
        assert_close(step_logits, whole[:, t])


def test_rows_of_several_hypotheses_are_decoded_in_bfloat16():
    """XLA has fewer products of it, on CPU, than of float32."""
    config = tiny.config(max_length=16, num_decoder_layers=1)
    params, targets = tiny.random_parameters(config), continuations(2 * len(PROMPTS))
    exact = scored(config, params, [prompt for prompt in PROMPTS for _ in range(2)], targets)
    lower = dataclasses.replace(config, dtype="bfloat16")
    rounded = decode(lower, params, inputs_only(PROMPTS), targets)
    error = np.abs(rounded - exact).max()
    assert 0 < error < 0.1 * np.abs(exact).max()


def test_biases_by_distance_are_read_in_float32_as_of_whole_rows():
    config = tiny.config(
        architecture="decoder_only", positions="relative_by_layer", dtype="bfloat16"
    )
    params = tiny.random_parameters(config)["decoder"]
    layer = Layers(config, "decoder")._layer(params, 0)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(layer)}
    table = optax.tree.get(layer, "table")
    assert table.dtype == jnp.float32 and "bfloat16" in dtypes


@pytest.mark.parametrize("most", [(3, None), (5, 3), (3, 4)])
def test_a_decoder_looks_back_no_further_than_its_context_and_its_window(most):
    """With one layer, the logits are those of the last few tokens alone: rotary positions count
    from anywhere, and what lies further back is as if it were not there."""
    sizes = dict(architecture="decoder_only", num_decoder_layers=1, positions="rotary")
    context, window = most
    layers = dict(layer_pattern=("window",), window=window) if window else {}
    config, short = tiny.config(**sizes), tiny.config(**sizes, context_length=context, **layers)
    params, targets = tiny.random_parameters(config), continuations(len(PROMPTS))
    logits = decode(short, params, inputs_only(PROMPTS), targets)
    ends = [(row, len(PROMPTS[row]) + t) for row in range(len(PROMPTS)) for t in range(LENGTH)]
    texts = [np.concatenate(pair) for pair in zip(PROMPTS, targets, strict=True)]
    tails = [texts[row][max(end - 3, 0) : end] for row, end in ends]
    expected = decode(config, params, inputs_only(tails), np.zeros((len(tails), 1), np.int32))
    assert_close(logits.reshape(expected[:, 0].shape), expected[:, 0])
