"""Gradients reach all that is trained, are exactly zero where no token may look, and are slopes."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.recurrent import reference as recurrent_reference

MORE = dict(qk_norm=True, attention_score="additive", embedding_norm=True, activation="swiglu")
ATTENTION = dict(attention_weights="sink", attention_gate="entry")
# Every shape and kind of positions, and the schemes with a second stream.
TRANSFORMERS = {
    f"{residual}-{shape}": dict(**tiny.SHAPES[shape], residual=residual, **changes)
    for residual, shape, changes in [
        ("b2t", "encoder_decoder", dict(positions="rotary", logits_bias=True, **ATTENTION)),
        (
            "residual_dual",
            "decoder_only",
            dict(positions="distance", num_kv_heads=1, attention_weights="sigmoid"),
        ),
        ("pre_ln", "decoder_only", MORE | dict(positions="learned")),
        ("admin", "masked_tokens", MORE),
        ("sandwich", "mean_classes", dict(positions="distance")),
        ("sub_ln", "first_classes", dict(positions="rotary")),
        ("rezero", "tags", dict(positions="relative", norm="rms_norm")),
        ("pre_ln", "tags", dict(norm="derf")),
    ]
}
# Logits read no table that embeds.
OWN = dict(tied_embeddings="none", vocab_size=40)
CONFIGS = {name: tiny.config(**changes, **OWN) for name, changes in TRANSFORMERS.items()} | {
    name: dataclasses.replace(
        config,
        num_encoder_layers=config.row.residual_from or 1,  # as few as have all that there is
        num_decoder_layers=config.row.residual_from or 1,
        **OWN,
    )
    for name, config in tiny.RECURRENT.items()
}
each_model = pytest.mark.parametrize(
    "config", tiny.every_second_long(zip(CONFIGS.values(), strict=True)), ids=CONFIGS
)


def packed_batch():
    """Packed rows and an empty one, where every slot holds another token, slots of padding too."""
    batch = tiny.packed_batch([])
    for name in ("inputs", "targets"):
        batch[name] = 4 + np.arange(batch[name].size, dtype=np.int32).reshape(batch[name].shape)
    return batch


@functools.cache
def derivatives(config):
    """(params, batch) -> d reading / d parameter, of each and each, and the logits, of each of
    which a reading is a random sum."""

    def readings(params, batch):
        logits = tiny.logits(config, params, batch)
        return logits @ projection(logits.shape[-1]).astype(np.float32), logits

    return jax.jit(jax.jacrev(readings, has_aux=True))


def projection(size):
    """Logits to a reading."""
    return np.random.default_rng(1).normal(size=size)


@each_model
def test_gradients_are_zero_exactly_where_no_token_may_look(config):
    """d logits[t] / d embedding of the token in slot s.

    A source token reaches all of its own example and nothing else, in the encoder and through
    what a decoder sees of it. A target token reaches the logits after it, in its own example.
    """
    batch = packed_batch()
    jacobian, _ = derivatives(config)(tiny.random_parameters(config), batch)
    two = config.architecture == "encoder_decoder"
    tables = {
        name: f"{kind}_embedding" if two else "embedding"
        for name, kind in (("inputs", "source"), ("targets", "target"))
        if name in tiny.read_by(config, batch)
    }
    segments = batch[f"{tiny.side_of_logits(config)}_segment_ids"]
    for name, table in tables.items():
        influence = np.abs(jacobian[table]["table"]).max(axis=-1)  # of every token that there is
        reach = influence[..., batch[name]] > 0
        for row, t in zip(*np.nonzero(segments), strict=True):
            expected = np.zeros(batch[name].shape, bool)
            expected[row] = batch[f"{name}_segment_ids"][row] == segments[row, t]
            if name == "targets":
                expected[:, t:] = False  # slot t holds what logits t are to predict
            np.testing.assert_array_equal(reach[row, t], expected)


@each_model
def test_gradients_reach_every_parameter_and_rows_of_padding_stay_finite(config):
    params = tiny.random_parameters(config)
    jacobian, logits = derivatives(config)(params, packed_batch())
    assert np.all(np.isfinite(logits))
    for path, leaf in tiny.flat(jacobian).items():
        assert np.all(np.isfinite(leaf)) and np.any(leaf), path
    of_padding = derivatives(config)(params, tiny.pack([[], [], [], []]))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(of_padding))


@pytest.mark.parametrize(
    "name", tiny.every_second_long((name,) for name in (*TRANSFORMERS, "lstmn-decoder_only"))
)
def test_gradients_are_the_slopes_of_a_slow_forward_pass(name):
    """In one direction, of which every parameter has a part. A tape's are written by hand."""
    forward = reference.forward if name in TRANSFORMERS else recurrent_reference.forward
    config = CONFIGS[name]
    params, batch = tiny.random_parameters(config), packed_batch()
    jacobian, _ = derivatives(config)(params, batch)
    rng = np.random.default_rng(2)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)
    slopes = sum(jax.tree.leaves(jax.tree.map(_along, jacobian, direction)))

    def readings(step):
        moved = jax.tree.map(lambda leaf, part: np.float64(leaf) + step * part, params, direction)
        logits = np.concatenate(forward(moved, batch, config))
        return logits @ projection(logits.shape[-1])

    expected = (readings(1e-6) - readings(-1e-6)) / 2e-6
    ours = reference.by_example(batch, tiny.side_of_logits(config), slopes)
    atol = 1e-4 * np.abs(expected).max()
    np.testing.assert_allclose(np.concatenate(ours), expected, rtol=1e-3, atol=atol)


def _along(jacobian, direction):
    """d reading / d step, of a parameter that goes in this direction."""
    return np.tensordot(np.float64(jacobian), direction, direction.ndim)
