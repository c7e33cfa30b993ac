"""A checkpoint of one mesh is restored on any other, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.checkpoint.init_from_test import init_from
from tests.checkpoint.states import ORIGIN, bits, restore
from transformer_jax.checkpoint.checkpoints import Checkpoints, load_parameters

# Layouts: devices along each of two axes, and the axes that shard the dimensions of `kernel`.
LAYOUTS = {
    "rows over all": ((8, 1), ("a", None)),
    "rows and columns": ((2, 4), ("a", "b")),
    "columns of four": ((1, 4), (None, "b")),
    "copies": ((2, 2), (None, None)),
    "one": ((1, 1), (None, None)),
}


def values(step):
    draw = np.random.default_rng(step)
    # The kernel is so large that it is still being written when the next step overwrites it.
    return {
        "params": {
            "kernel": draw.normal(size=(1024, 512)).astype(np.float32),
            "bias": draw.normal(size=6).astype(jnp.bfloat16),
        },
        "step": np.int32(step),
    }


def layout(name):
    """The shardings of `values`, and of a random key."""
    sizes, axes = LAYOUTS[name]
    devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    whole = NamedSharding(mesh, PartitionSpec())
    kernel = NamedSharding(mesh, PartitionSpec(*axes))
    return {"params": {"kernel": kernel, "bias": whole}, "step": whole, "rng": whole}


def state(step, name):
    return jax.device_put(values(step) | {"rng": jax.random.key(step)}, layout(name))


def abstract(name):
    def shape(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(shape, values(0) | {"rng": jax.random.key(0)}, layout(name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two checkpoints of different layouts, whose arrays are overwritten right after the save."""
    folder = tmp_path_factory.mktemp("work") / "checkpoints"
    checkpoints = Checkpoints(folder, keep_last=9, best_metric="")
    overwrite = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree), donate_argnums=0)
    for step, name in ((1, "rows over all"), (2, "rows and columns")):
        arrays = state(step, name)
        checkpoints.save(step, arrays, {}, ORIGIN, {}, scheduled=True, records=0)
        overwrite({name: arrays[name] for name in ("params", "step")})
    checkpoints.close()
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_restores_what_another_saved(folder, name):
    checkpoints = Checkpoints(folder, keep_last=9, best_metric="")
    for step in (1, 2):
        restored = restore(checkpoints, step, abstract(name)).state
        assert jax.tree.map(lambda leaf: leaf.sharding, restored) == layout(name)
        assert bits(restored) == bits(values(step) | {"rng": jax.random.key(step)})

    mean = load_parameters(checkpoints.newest(2), abstract(name)["params"])
    assert jax.tree.map(lambda leaf: leaf.sharding, mean) == layout(name)["params"]
    for path, leaf in mean.items():
        parts = [values(step)["params"][path].astype(np.float64) for step in (1, 2)]
        np.testing.assert_array_equal(leaf, np.mean(parts, axis=0).astype(leaf.dtype))

    params, report = init_from(folder / "1", state(5, name)["params"])
    assert report.taken == ("bias", "kernel")
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == layout(name)["params"]
    np.testing.assert_array_equal(params["kernel"], values(1)["params"]["kernel"])
