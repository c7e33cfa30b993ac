"""Memory of the rows before: what rows with it give is what one pass over the text gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.decoding_test import decode, inputs_only
from tests.models.tiny import assert_close
from transformer_jax.models.family import with_memory

LENGTH, MEMORY = 4, 5  # of a segment, and of what is seen before it


def config_of(positions="distance", **changes):
    settings = dict(architecture="decoder_only", positions=positions, memory_length=MEMORY)
    return tiny.config(**(settings | changes))


# A model of each family that has memory, and all cells that can carry their states.
MODELS = {
    "transformer": config_of(),
    **{name: tiny.recurrent(name, "decoder_only", stateful=True) for name in ("lstm", "gru")},
}
each_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


def documents(*lengths, seed=0):
    return [target for _, target in tiny.sentences(*((1, length) for length in lengths), seed=seed)]


def segments_of(rows, length=LENGTH):
    """Batches of readers that each read a list of documents to their end, one after the other."""
    streams = []
    for row in rows:
        positions = np.concatenate([np.arange(len(document)) for document in row])
        streams.append((np.concatenate(row), positions))
    longest = -(-max(len(tokens) for tokens, _ in streams) // length) * length
    for start in range(0, longest, length):
        ids, segments, places = np.zeros((3, len(rows), length), np.int32)
        for number, (tokens, positions) in enumerate(streams):
            place = positions[start : start + length]
            ids[number, : len(place)] = tokens[start : start + length]
            segments[number, : len(place)] = np.cumsum(place == 0) + (place[:1] > 0)
            places[number, : len(place)] = place
        yield {"targets": ids, "targets_segment_ids": segments, "targets_positions": places}


def nothing(config, rows, length=None):
    shapes = tiny.family_of(config).memory(config, rows, length)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


@functools.cache
def compiled(config):
    model = tiny.model(config)
    return jax.jit(functools.partial(with_memory, model))


def read(config, params, rows, length=LENGTH, memory_length=None):
    """Logits of each reader's tokens, and the memory after the last segment."""
    memory, logits = nothing(config, len(rows), memory_length), []
    for batch in segments_of(rows, length):
        outputs, memory = compiled(config)(params, batch, None, memory)
        logits.append(outputs.arrays())
    whole = np.concatenate(logits, axis=1)
    return [row[: sum(map(len, docs))] for row, docs in zip(whole, rows, strict=True)], memory


@pytest.mark.parametrize(
    ("positions", "residual", "changes", "memory"),
    [
        ("distance", "post_ln", dict(attention_weights="sink", attention_gate="head"), MEMORY),
        (
            "relative",
            "pre_ln",
            dict(layer_pattern=("full", "window"), window=4, attention_weights="sigmoid"),
            MEMORY,
        ),
        ("distance", "post_ln", {}, 0),  # and not what the config says
    ],
)
def test_segments_with_memory_give_what_one_pass_with_their_window_gives(
    positions, residual, changes, memory
):
    """A token of a segment sees this from its beginning on and so many tokens before, in every
    layer; documents of any length, in rows of their own, in which others went before."""
    config = config_of(positions, residual=residual, max_distance=6, **changes)
    params = tiny.random_parameters(config)
    a, b, c, d = documents(17, 10, 3, 6)
    rows = [[a], [c, b, d]]
    in_segments, _ = read(config, params, rows, memory_length=memory)
    for logits, row in zip(in_segments, rows, strict=True):
        start = 0
        for document in row:
            end = start + len(document)

            def first_seen(t, start=start):
                segment = (start + t) // LENGTH * LENGTH
                return max(0, segment - memory - start)

            batch = tiny.pack([[(document, document)]], len(document), len(document))
            (expected,) = reference.forward(params, batch, config, first_seen=first_seen)
            assert_close(logits[start:end], expected)
            start = end


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_carried_states_give_what_one_long_row_gives(name):
    """To documents of any length, in rows of their own, or in which others went before."""
    config, plain = MODELS[name], tiny.recurrent(name, "decoder_only")
    params = tiny.random_parameters(config)
    a, b, c, d = documents(17, 10, 3, 6)
    rows = [[a], [c, b, d]]
    in_segments, _ = read(config, params, rows)
    one_row, _ = read(config, params, rows, length=19)
    for logits, others, row in zip(in_segments, one_row, rows, strict=True):
        whole = tiny.pack([[(document, document)] for document in row], 17, 17)
        alone = tiny.apply_function(plain)(params, whole)
        expected = np.concatenate([x[: len(doc)] for x, doc in zip(alone, row, strict=True)])
        assert_close(logits, expected)
        assert_close(others, expected)


@each_model
def test_no_gradient_enters_memory(config):
    """Neither by itself, nor by what it was made from: the gradient of a segment's loss is that
    with the memory as a constant. That memory matters is seen by the logits."""
    params, rows = tiny.random_parameters(config), [documents(8), documents(8, seed=1)]
    first, second = segments_of(rows)
    apply = compiled(config)

    def loss(params, constant, change):
        """With a constant memory, or else with what was made and a change of its vectors."""
        if constant is None:
            _, memory = apply(params, first, None, nothing(config, 2))
            constant = memory | {"hidden": memory["hidden"] + change}
        outputs, _ = apply(params, second, None, constant)
        return jnp.sum(jnp.square(outputs.arrays()))

    _, constant = apply(params, first, None, nothing(config, 2))
    value, expected = jax.jit(jax.value_and_grad(loss))(params, constant, None)
    gradients, of_memory = jax.jit(jax.grad(loss, (0, 2)))(params, None, 0 * constant["hidden"])
    jax.tree.map(assert_close, gradients, expected)
    assert not np.any(of_memory)
    assert value != loss(params, nothing(config, 2), None)


def test_a_decoder_writes_with_the_window_of_its_memory():
    """Step by step, each token sees itself and MEMORY tokens before: segments of one token."""
    config = config_of("relative", context_length=MEMORY + 1)
    params, (document,) = tiny.random_parameters(config), documents(14)
    (expected,), _ = read(config, params, [[document]], length=1)
    prompt = np.append([config.bos_id], document[:7]).astype(np.int32)
    (logits,) = decode(config, params, inputs_only([prompt]), document[None, 7:])
    assert_close(logits, expected[7:])


@pytest.mark.parametrize(
    "config", [tiny.config(architecture="decoder_only"), tiny.RECURRENT["lstm-decoder_only"]]
)
def test_a_row_that_goes_on_without_memory_begins_with_bos(config):
    """And not with what the end of the same row says."""
    (batch,) = segments_of([documents(LENGTH)])
    batch["targets_positions"] += 3
    other = dict(batch, targets=batch["targets"].copy())
    other["targets"][:, -1] = 3 + (batch["targets"][:, -1] - 2) % 4
    assert (other["targets"] != batch["targets"]).sum() == 1
    read, params = tiny.apply_function(config), tiny.random_parameters(config)
    np.testing.assert_array_equal(read(params, batch), read(params, other))
