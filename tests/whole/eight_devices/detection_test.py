"""Boxes on a mesh of eight devices: matched by each device for its own images, and learnt alike."""

import functools
import itertools

import jax
import numpy as np

from tests.tasks.detection_test import CHANGES
from tests.whole.eight_devices import small
from transformer_jax.config.build import build
from transformer_jax.config.load import load
from transformer_jax.configs import default
from transformer_jax.devices import mesh as sharding
from transformer_jax.devices.mesh import AXES, each_by_its_rows
from transformer_jax.training.detection import assign


def test_each_device_matches_its_own_images_without_a_word_to_others():
    costs = np.random.default_rng(0).normal(size=(2, 16, 9, 4)).astype(np.float32)
    every = jax.vmap(jax.vmap(assign))
    mesh = sharding.make_mesh(small.MESHES["data, fsdp and tensor"], jax.devices())
    with sharding.use(mesh):
        layout = jax.NamedSharding(mesh, jax.P(None, ("data", "fsdp")))
        placed = jax.device_put(costs, layout)
        alone = jax.jit(functools.partial(each_by_its_rows, every, axis=1)).lower(placed).compile()
        together = jax.jit(every).lower(placed).compile()
        np.testing.assert_array_equal(alone(placed), together(placed))
    exchanges = "all-reduce(", "all-gather("
    assert not any(word in str(alone.as_text()) for word in exchanges)
    assert any(word in str(together.as_text()) for word in exchanges)


def losses(folder, mesh):
    """Of three steps on scenes."""
    settings = CHANGES | {
        "data.source": "scenes",
        "data.name": "shapes",
        "data.train": ("train[:48]",),
        "data.validation": ("validation[:8]",),
        "data.test": (),
        "data.image_size": (32, 32),
        "data.max_target_length": 4,
        "data.cache_dir": str(folder),
        "model.dropout_rate": 0.0,
        "model.embedding_dropout_rate": 0.0,
        **{f"mesh.{axis}": size for axis, size in zip(AXES, mesh, strict=True)},
    }
    run = build(load(default.__file__, settings))
    with sharding.use(run.mesh):
        batches = [sharding.place(run.mesh, b) for b in itertools.islice(run.train_streams(), 3)]
        step, state, curve = run.train_step(), run.new_state(batches[0]), []
        for batch in batches:
            state, metrics = step(state, batch)
            curve.append(float(metrics["loss"]))
    return curve


def test_losses_are_those_of_one_device(tmp_path):
    alone = losses(tmp_path, small.ALONE)
    curve = losses(tmp_path, small.MESHES["data, fsdp and tensor"])
    assert alone[0] != alone[2]
    np.testing.assert_allclose(curve, alone, rtol=1e-4)
