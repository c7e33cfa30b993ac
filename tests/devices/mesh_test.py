"""The mesh, the table of what is sharded over it, and the thread that places batches ahead."""

import contextlib
import dataclasses
import itertools
import threading
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tests.defaults import make_optimizer
from tests.devices.fakes import Device, devices
from tests.processes import wait_for
from transformer_jax.devices import mesh as sharding
from transformer_jax.models.family import parameter_name, roles
from transformer_jax.models.layers.parameter import Boxed

MESH = sharding.make_mesh((1, 1, 1, 1), jax.devices())
# Nothing is computed on it.
CUBE: Any = AbstractMesh((2, 4, 2, 1), sharding.AXES)
SQUARE: Any = AbstractMesh((2, 2, 1, 2), sharding.AXES)


def sizes(data, fsdp, tensor, sequence, on=None):
    return sharding.make_mesh((data, fsdp, tensor, sequence), on or devices(8)).devices.shape


@dataclasses.dataclass(frozen=True)
class Tpu(Device):
    """One of two slices, each a line of eight."""

    platform: str = "tpu"
    core_on_chip: int = 0

    @property
    def coords(self):
        return self.id % 8, 0, 0


TWO_SLICES = [Tpu(device.id, device.slice_index) for device in devices(16, slices=2)]


# The mesh


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((-1, 1, 1, 1), (8, 1, 1, 1)),
        ((1, -1, 2, 1), (1, 4, 2, 1)),
        ((2, -1, 4, 1), (2, 1, 4, 1)),
    ],
)
def test_an_axis_may_be_the_rest_of_the_devices(settings, expected):
    assert sizes(*settings) == expected


def test_named_sizes_take_the_first_devices():
    mesh = sharding.make_mesh((1, 2, 1, 1), devices(8))
    assert [device.id for device in mesh.devices.flat] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 1, 1, 1), "mesh.data=0 is neither"),
        ((-1, 1, -1, 1), "mesh.tensor=-1, .*only one axis"),
        ((4, 4, 1, 1), "mesh.data=4, mesh.fsdp=4.*: 16 devices do not fit into the 8 at hand"),
        ((-1, 3, 1, 1), "product divides 8"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        sizes(*settings)


def test_only_data_reaches_across_slices():
    mesh = sharding.make_mesh((-1, 2, 2, 1), TWO_SLICES)
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    assert mesh.devices.shape == (4, 2, 2, 1)
    assert np.all(slices[:2] == 0) and np.all(slices[2:] == 1)
    with pytest.raises(ValueError, match="mesh.data=1 is not a multiple of the 2 slices"):
        sizes(1, -1, 1, 1, TWO_SLICES)


def test_any_axis_reaches_across_hosts_of_gpus():
    """XLA counts each of them as a slice."""
    gpus = [dataclasses.replace(device, platform="gpu") for device in devices(16, slices=2)]
    assert sizes(1, -1, 1, 1, gpus) == (1, 16, 1, 1)


# What is sharded over it


def cube_spec(*named):
    """The specification on the cube of dimensions (logical axis, size)."""
    axes, shape = zip(*named, strict=True)
    return sharding.spec(CUBE, axes, shape)


def test_logical_axes_are_sharded_as_the_table_says():
    query = cube_spec(("layers", 6), ("embed", 8), ("heads", 4), ("head_dim", 3))
    assert query == PartitionSpec(None, "fsdp", "tensor", None)
    hidden = cube_spec(("batch", 16), ("length", 9), ("mlp", 6))
    # The sequence axis has one device.
    assert hidden == PartitionSpec(("data", "fsdp"), None, "tensor")
    assert cube_spec(("batch", 16), (None, 9)) == PartitionSpec(("data", "fsdp"), None)


def test_what_does_not_divide_stays_whole():
    axes, shape = ("batch", "embed_out", "heads"), (12, 3, 5)
    assert sharding.spec(CUBE, axes, shape) == PartitionSpec(None, None, None)
    expected = ["batch 12 over data 2 * fsdp 4", "heads 5 over tensor 2"]
    assert sharding.undivided(CUBE, axes, shape) == expected
    assert sharding.undivided(CUBE, ("batch", "heads"), (16, 4)) == []


def test_two_axes_of_one_array_cannot_be_sharded_over_one_mesh_axis():
    with pytest.raises(ValueError, match="'heads' and 'mlp' of one array .* mesh axis 'tensor'"):
        cube_spec(("heads", 4), ("mlp", 8))
    with pytest.raises(ValueError, match="'batch' and 'embed' .* mesh axis 'fsdp'"):
        cube_spec(("batch", 16), ("length", 4), ("embed", 8))
    with pytest.raises(ValueError, match="'head' has no rule"):
        cube_spec(("head", 4))


def boxed(*named, matrix=None):
    axes, shape = zip(*named, strict=True)
    return Boxed(jax.ShapeDtypeStruct(shape, jnp.float32), axes, matrix=matrix)


LAYERS, EMBED, HEADS, SIZE = ("layers", 3), ("embed", 128), ("heads", 4), ("head_dim", 64)
PARAMETERS: Any = {
    "embedding": {"table": boxed(("vocab", 256), EMBED, matrix=(1, 1))},
    "decoder": {
        "self_attention": {
            "query": boxed(LAYERS, EMBED, HEADS, SIZE, matrix=(1, 2)),
            "output": boxed(LAYERS, HEADS, SIZE, EMBED, matrix=(2, 1)),
            "query_bias": boxed(LAYERS, HEADS, SIZE),
        },
        "norm": {"scale": boxed(LAYERS, EMBED)},
    },
}


def followed(name):
    """The specification of each leaf of an optimizer's state, by the end of its path."""
    groups = (("embedding/*", 0.5, 0.0), ("decoder/norm/*", 0.0, 0.0))
    get_roles = lambda: roles(PARAMETERS)  # noqa: E731
    transform = make_optimizer(name, 0.1, get_roles, clip_norm=1.0, groups=groups)
    params = nn.meta.unbox(PARAMETERS)
    state = jax.eval_shape(transform.init, params)
    layout = sharding.follow(CUBE, state, params, sharding.shardings(CUBE, PARAMETERS))
    shapes = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), where in zip(shapes, jax.tree.leaves(layout), strict=True):
        name = parameter_name(path)
        yield name, leaf.shape, tuple(where.spec) + (None,) * (leaf.ndim - len(where.spec))


def test_moments_lie_as_their_parameters_do():
    layout = {name.split("mu/")[-1]: cuts for name, _, cuts in followed("adamw") if "/mu/" in name}
    assert layout == {
        "embedding/table": ("tensor", "fsdp"),
        "decoder/self_attention/query": (None, "fsdp", "tensor", None),
        "decoder/self_attention/output": (None, "tensor", None, "fsdp"),
        "decoder/self_attention/query_bias": (None, "tensor", None),
    }
    others = [cuts for name, _, cuts in followed("adamw") if name.endswith("count")]
    assert others and set(others) == {()}


def test_moments_of_folded_matrices_are_sharded_as_their_factors_are():
    moments = {name: (shape, cuts) for name, shape, cuts in followed("muon")}
    (query,), (output,) = (
        [moments[name] for name in moments if name.endswith(f"self_attention/{kind}/0/mu")]
        for kind in ("query", "output")
    )
    assert query == ((3, 128, 256), (None, "fsdp", "tensor"))
    assert output == ((3, 256, 128), (None, "tensor", "fsdp"))


def test_factored_moments_are_sharded_as_the_dimensions_that_they_keep():
    layout = {
        (kind, shape): cuts
        for name, shape, cuts in followed("adafactor")
        for kind in ("query", "output")
        if name.endswith((f"{kind}/0/v_row", f"{kind}/0/v_col"))
    }
    for kind in ("query", "output"):
        assert layout[kind, (3, 128)] == (None, "fsdp")
        assert layout[kind, (3, 256)] == (None, "tensor")


def test_without_a_mesh_or_on_one_device_nothing_is_constrained():
    def text():
        traced = jax.make_jaxpr(lambda x: sharding.constrain(x, "batch", "length"))
        return str(traced(np.zeros((8, 4))))

    assert "sharding_constraint" not in text()
    with sharding.use(MESH):
        assert "sharding_constraint" not in text()


def test_one_host_holds_all_rows():
    assert sharding.local_rows(MESH, 6) == list(range(6))


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8", "bfloat16"])
@pytest.mark.parametrize("shape", [(8,), (8, 6), (8, 6, 3), (8, 6, 2, 5)])
def test_arrays_of_a_batch_are_sharded_by_rows_and_length_whatever_is_at_each_place(shape, dtype):
    axes = PartitionSpec(*[("data", "fsdp"), ("sequence",), None, None][: len(shape)])
    assert sharding.batch_sharding(SQUARE, shape).spec == axes
    values = np.arange(np.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    placed = sharding.place(MESH, {"inputs": values})["inputs"]
    assert placed.dtype == dtype
    np.testing.assert_array_equal(placed, values)


# The thread


class Counter:
    """Batches 0, 1, 2, ...; fails in place of batch `fails_at`."""

    def __init__(self, fails_at=None):
        self.count = 0
        self.fails_at = fails_at

    def __next__(self):
        if self.count == self.fails_at:
            raise OSError("the disk is gone")
        self.count += 1
        return {"inputs": np.full((2, 3), self.count - 1, np.int32)}

    def get_state(self):
        return {"0": {"next": self.count}}


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("place_ahead")}


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_come_in_order_with_the_state_after_each_and_closing_ends_the_thread(depth):
    before = threads()  # of other tests' batches
    with contextlib.closing(sharding.place_ahead(Counter(), MESH, depth)) as batches:
        for n, (batch, state) in enumerate(itertools.islice(batches, 10)):
            assert isinstance(batch["inputs"], jax.Array)
            np.testing.assert_array_equal(batch["inputs"], np.full((2, 3), n))
            assert state == {"0": {"next": n + 1}}
        assert threads() - before
    assert threads() <= before


def test_the_next_batches_are_made_while_the_caller_works():
    streams = Counter()
    with contextlib.closing(sharding.place_ahead(streams, MESH, depth=3)) as batches:
        next(batches)
        wait_for(lambda: streams.count == 4)  # batches 1 to 3 need no further call
    assert streams.count == 4


def test_an_exception_of_the_thread_arrives_in_place_of_its_batch():
    before = threads()
    with contextlib.closing(sharding.place_ahead(Counter(fails_at=3), MESH, depth=2)) as batches:
        first = [int(batch["inputs"][0, 0]) for batch, _ in itertools.islice(batches, 3)]
        assert first == [0, 1, 2]
        with pytest.raises(OSError, match="the disk is gone"):
            next(batches)
    assert threads() <= before
