"""Scores, predictions, decoded text and diagnostics on a mesh equal those on one device."""

import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.defaults import settings
from tests.evaluation.generate_test import generate
from tests.whole.eight_devices import small
from tests.whole.eight_devices.small import ALONE, ROWS, Small
from transformer_jax.devices import mesh as sharding
from transformer_jax.evaluation import trained
from transformer_jax.evaluation.decoder import DecodeSettings
from transformer_jax.inspection import probes
from transformer_jax.inspection.measures import diagnose
from transformer_jax.training import state as train_state
from transformer_jax.training.probe import Observation

BEAM = settings(DecodeSettings, "decode", beam_size=3, extra_length=6)
MESHES = ["data, fsdp and tensor", "fsdp, tensor and sequence"]


@functools.cache
def parameters(run):
    """On the host, with kernels large enough that the decoded text depends on the prompt."""
    params = run.first().params
    return jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 1 else leaf, params)


def on(name, run, compute):
    """compute(parameters) on the mesh of this name."""
    on_mesh = run.on(small.MESHES[name])
    with sharding.use(on_mesh.mesh):
        layout = train_state.layout(on_mesh.abstract_state.params)
        return compute(jax.device_put(parameters(run), layout))


def written(run, params):
    """What beam search writes; the second batch has three rows, which no mesh divides evenly."""
    prompts = small.batch("encoder_decoder", 7)
    batches = [
        ({name: rows[:count] for name, rows in prompts.items()}, np.arange(start, start + count))
        for start, count in ((0, ROWS), (ROWS, 3))
    ]

    def six(tokens, *_):
        return np.full_like(tokens, 6)

    return generate(run.on(ALONE).model, batches, params=params, settings=BEAM, key=3, limit=six)


@pytest.mark.parametrize(
    ("run", "mesh"),
    [
        (Small("decoder_only", "pre_ln"), MESHES[0]),
        (Small("encoder_decoder", "pre_ln", changes=(("positions", "relative"),)), MESHES[1]),
        (Small("decoder_only", recurrence="lstmn"), MESHES[1]),
    ],
)
def test_beam_search_writes_the_same_on_a_mesh(run, mesh):
    expected = on("one device", run, functools.partial(written, run))
    assert len({tuple(ids) for (ids,) in expected}) > ROWS // 2
    assert on(mesh, run, functools.partial(written, run)) == expected


def test_scores_and_predictions_are_the_same_and_whole_on_every_device():
    run, batch = Small("encoder_only"), small.batch("encoder_only", 5)
    alone = run.on(ALONE)

    def compute(params):
        (*_, sums), _ = trained.predict_step(params, batch, model=alone.model, predict=alone.loss)
        predict = alone.task.predict
        classes, _ = trained.predict_step(params, batch, model=alone.model, predict=predict)
        outputs = sums, classes
        assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(outputs))
        return jax.device_get(outputs)

    expected_sums, expected = on("one device", run, compute)
    sums, classes = on(MESHES[1], run, compute)
    np.testing.assert_array_equal(classes, expected)
    assert jax.tree.map(np.shape, sums) == jax.tree.map(np.shape, expected_sums)
    for name, values in sums.items():
        np.testing.assert_allclose(values, expected_sums[name], rtol=1e-5)


def test_diagnostics_are_the_same_and_whole_on_every_device():
    run, batch = Small("decoder_only"), small.batch("decoder_only", 5)
    alone = run.on(ALONE)

    def compute(params):
        moved = jax.tree.map(lambda leaf: leaf * 1.01, params)
        after: Any = SimpleNamespace(params=moved)
        observation = Observation(after, params, batch)
        outputs = probes.compiled(alone, diagnose)(observation)
        assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(outputs))
        return jax.device_get(outputs)

    expected, diagnostics = on("one device", run, compute), on(MESHES[0], run, compute)
    assert diagnostics.keys() == expected.keys()
    for name, values in diagnostics.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
