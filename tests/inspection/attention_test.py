"""Where tokens look: every weight as a slow model has it, and heads that are taken out."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import reference, tiny
from tests.models.recurrent import reference as recurrent_reference
from transformer_jax.inspection.attention import attention, without_heads


def _recorded(module, monkeypatch):
    """What each query of a slow model gives to the keys, in the order of computation."""
    rows, softmax = [], module.softmax

    def recorded(scores):
        rows.append(softmax(scores))
        return rows[-1]

    monkeypatch.setattr(module, "softmax", recorded)
    return rows


def slow_weights(config, params, batch, monkeypatch):
    """(L, H, T, S) by stack and kind, of a batch of one example."""
    rows = _recorded(reference, monkeypatch)
    reference.forward(params, batch, config)
    records = iter(rows)
    lengths = {side: int(np.sum(batch[f"{side}_segment_ids"])) for side in ("inputs", "targets")}
    sides = {"encoder": "inputs", "decoder": "targets"}
    weights = {}
    for stack, kinds in tiny.stacks(config).items():
        for _ in range(2):
            for kind in kinds:
                if kind == "feed_forward":
                    continue
                queries = lengths[sides[stack]]
                keys = lengths["inputs"] if kind == "cross_attention" else queries
                heads = np.zeros((config.num_heads, queries, keys))
                for head in heads:
                    for query in head:
                        row = next(records)
                        query[: len(row)] = row
                weights.setdefault((stack, kind), []).append(heads)
    assert next(records, None) is None
    return {place: np.stack(layers) for place, layers in weights.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        dict(positions="rotary"),
        dict(architecture="decoder_only", positions="distance", layer_pattern=("full", "window"))
        | dict(window=3),
    ],
    ids=["encoder-decoder", "decoder-only"],
)
def test_weights_are_those_of_a_slow_model(changes, monkeypatch):
    config = tiny.config(**changes)
    params, batch = tiny.random_parameters(config), tiny.pack([tiny.sentences((7, 6))])
    logits, looks, memory = jax.jit(functools.partial(attention, tiny.model(config)))(
        params, tiny.read_by(config, batch)
    )
    expected = slow_weights(config, params, batch, monkeypatch)
    assert set(looks) == set(expected) and memory == ()
    for place, weights in expected.items():
        rows, columns = weights.shape[2:]
        look = np.asarray(looks[place].weights)[:, 0, :, :rows]
        np.testing.assert_allclose(look[..., :columns], weights, rtol=0, atol=1e-6)
        assert not look[..., columns:].any()
    plain = tiny.apply_function(config)(params, batch)
    np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rnnsearch", "gnmt", "lstmn"])
def test_recurrent_weights_are_those_of_a_slow_model(name, monkeypatch):
    """Of each example of packed rows, and nothing of the others."""
    config = tiny.recurrent(name)
    kind = "self_attention" if name == "lstmn" else "cross_attention"
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    _, looks, _ = attention(tiny.model(config), params, tiny.read_by(config, batch))
    assert set(looks) == {("decoder", kind)}
    layers = np.asarray(looks["decoder", kind].weights)
    rows = _recorded(recurrent_reference, monkeypatch)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for row, segment in reference.split(batch, "targets"):
        sides = "inputs", "targets"
        masks = {side: batch[f"{side}_segment_ids"][row] == segment for side in sides}
        source, target = (batch[side][row][masks[side]] for side in sides)
        rows.clear()
        read = np.append(config.bos_id, target[:-1])
        recurrent_reference.LOGITS[name](params, source, read)
        records = iter(rows)
        for layer in layers:
            weights = layer[row, 0][masks["targets"]]
            for place, query in enumerate(weights):
                mask = masks["inputs" if kind == "cross_attention" else "targets"]
                expected = np.zeros(len(query))
                if kind == "cross_attention":
                    expected[mask] = next(records)
                elif place:
                    expected[np.flatnonzero(mask)[:place]] = next(records)
                np.testing.assert_allclose(query, expected, rtol=0, atol=1e-6)
        assert next(records, None) is None


def test_a_head_that_is_taken_out_adds_nothing_and_others_stay():
    config = tiny.config("pre_ln", architecture="decoder_only")
    params, batch = tiny.random_parameters(config), tiny.packed_batch()
    place = ("decoder", "self_attention")
    without = without_heads(jax.device_get(params), *place, [(0, 1)])
    # The same model whose head finds zeros
    silent = jax.tree.map(jnp.array, params)
    weights = silent["decoder"]["self_attention"]
    weights["value"] = weights["value"].at[0, :, 1].set(0.0)
    weights["value_bias"] = weights["value_bias"].at[0, 1].set(0.0)
    expected, logits = (tiny.apply_function(config)(tree, batch) for tree in (silent, without))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(logits - tiny.apply_function(config)(params, batch)).max() > 1e-2


@pytest.mark.parametrize("place, head, named", [
    (("decoder", "self_attention"), (2, 0), "layer 2"),
    (("decoder", "self_attention"), (0, -1), "head -1"),
    (("encoder", "self_attention"), (0, 0), "encoder/self_attention"),
])  # fmt: skip
def test_heads_that_are_not_there_are_named(place: tuple, head, named):
    params = tiny.random_parameters(tiny.config(architecture="decoder_only"))
    with pytest.raises(ValueError, match=named):
        without_heads(params, place[0], place[1], [head])
