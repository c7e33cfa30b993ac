"""The mesh of devices, the table of what is sharded over which of its axes, and placed batches.

Arrays name their dimensions (logical axes); `RULES` says over which mesh axes each is sharded. A
dimension that does not divide stays whole.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

# From the axis with the least exchange to the one with the most, whose neighbours are close.
AXES = ("data", "fsdp", "tensor", "sequence")
# The D axis of an activation has no name, since its rows are already sharded over fsdp.
RULES: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "looked_up": ("data",),  # rows of a batch next to "embed", which takes fsdp first
    "length": ("sequence",),
    "embed": ("fsdp",),
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "head_dim": (),
    "embed_out": (),
    "gates": (),
    "state": (),
    "labels": (),
    "coordinates": (),
    "layers": (),
    "positions": (),
    "pixels": (),
    "channels": (),
}


class Streams(Protocol):
    """Batches without end, and the position after the newest one."""

    def __next__(self) -> dict[str, np.ndarray]: ...

    def get_state(self) -> dict[str, Any]: ...


Placed = tuple[dict[str, jax.Array], dict[str, Any]]


def least_devices(sizes: Sequence[int]) -> int:
    """How many devices a mesh needs, or a multiple of it where one axis (-1) is the rest."""
    return math.prod(size for size in sizes if size != -1)


def make_mesh(sizes: Sequence[int], devices: Sequence[Any]) -> Mesh:
    """The mesh of these devices, or of the first of them where no axis is the rest.

    Where there are several TPU slices, only `data` reaches across them.

    Args:
      sizes: `config.mesh`: how many devices each of `AXES` has; -1 on one of them means the rest.

    Raises:
      ValueError: a size is none, several are the rest, or they do not fit the number of devices or
        of slices.
    """
    settings = [f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True)]
    for setting, size in zip(settings, sizes, strict=True):
        if size < 1 and size != -1:
            raise ValueError(f"{setting} is neither a number of devices nor -1")
    text, least = ", ".join(settings), least_devices(sizes)
    if sizes.count(-1) > 1:
        raise ValueError(f"{text}: only one axis can be the rest of the devices (-1)")
    rest = len(devices) // least
    if rest == 0 or (-1 in sizes and len(devices) % least):
        raise ValueError(
            f"{text}: {least} devices do not fit into the {len(devices)} at hand, "
            f"{devices[0].device_kind}; choose sizes whose product "
            f"{'divides' if -1 in sizes else 'is at most'} {len(devices)}"
        )
    sizes = tuple(rest if size == -1 else size for size in sizes)
    devices = devices[: math.prod(sizes)]
    if set(range(jax.process_count())) - {device.process_index for device in devices}:
        raise ValueError(
            f"{text} leaves hosts without a device: give one axis the rest of the devices (-1)"
        )
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    # To XLA each host of GPUs is a slice, but the network between hosts is fast enough.
    if slices > 1 and devices[0].platform == "tpu":
        if sizes[0] % slices:
            raise ValueError(
                f"mesh.data={sizes[0]} is not a multiple of the {slices} slices, across which only "
                "`data` is sharded: make it one, or give `data` the rest of the devices (-1)"
            )
        inner, outer = (sizes[0] // slices, *sizes[1:]), (slices, 1, 1, 1)
        grid = mesh_utils.create_hybrid_device_mesh(
            inner, outer, devices, allow_split_physical_axes=True
        )
    else:
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


# Compiles whatever is compiled inside `with use(mesh)` for this mesh. Flax's own rules for logical
# axes are not used, since they would shard what does not divide. `shardings` says where parameters
# lie, and `constrain` where activations do.
use = jax.set_mesh


def spec(mesh: Any, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
    """The mesh axes over which each dimension is sharded, by its logical axis (None: over none).

    Mesh axes of one device are left out, and a dimension that does not divide stays whole.

    Raises:
      ValueError: a logical axis has no rule, or two of them would be sharded over one mesh axis.
    """
    owners: dict[str, str] = {}
    parts: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        if axis is not None and axis not in RULES:
            raise ValueError(
                f"the logical axis {axis!r} has no rule in devices/mesh.py, which has rules for "
                f"{', '.join(RULES)}"
            )
        over = RULES[axis] if axis else ()
        for mesh_axis in over:
            if mesh_axis in owners:
                raise ValueError(
                    f"{owners[mesh_axis]!r} and {axis!r} of one array {tuple(axes)} would both be "
                    f"sharded over the mesh axis {mesh_axis!r}: name one of them None"
                )
            owners[mesh_axis] = str(axis)
        over = tuple(mesh_axis for mesh_axis in over if mesh.shape[mesh_axis] > 1)
        divides = size % math.prod(mesh.shape[mesh_axis] for mesh_axis in over) == 0
        parts.append(over if over and divides else None)
    return PartitionSpec(*parts)


def undivided(mesh: Any, axes: Sequence[str | None], shape: Sequence[int]) -> list[str]:
    """The dimensions that `spec` leaves whole since they do not divide: "heads 3 over tensor 2"."""
    dimensions = []
    for axis, size, cut in zip(axes, shape, spec(mesh, axes, shape), strict=True):
        if axis is None or cut is not None:
            continue
        over = [f"{name} {mesh.shape[name]}" for name in RULES[axis] if mesh.shape[name] > 1]
        if over:
            dimensions.append(f"{axis} {size} over {' * '.join(over)}")
    return dimensions


def constrain(x: Shaped[Array, "..."], *axes: str | None) -> Shaped[Array, "..."]:
    """Shards an activation over the mesh in use as `spec` says, if there is one of several devices.

    Logical axes name the dimensions from the first; the remaining ones stay whole. So without axes
    the array is whole on every device, where every host can read it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    axes = (*axes, *[None] * (x.ndim - len(axes)))
    return jax.lax.with_sharding_constraint(x, spec(mesh, axes, x.shape))


def each_by_its_rows(
    function: Callable[[Shaped[Array, "..."]], Shaped[Array, "..."]],
    x: Shaped[Array, "..."],
    axis: int,
) -> Shaped[Array, "..."]:
    """function(x), where each device of the mesh in use computes the rows of the batch that it has.

    So a loop of as many turns as its rows need waits for no other device. axis: where the rows
    are, in x and in what becomes of it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return function(x)
    rows = spec(mesh, (*[None] * axis, "batch"), x.shape[: axis + 1])
    return jax.shard_map(function, in_specs=rows, out_specs=rows, check_vma=False)(x)


def shards(axis: str, size: int) -> int:
    """How many devices of the mesh in use share a dimension of this logical axis and size."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    (part,) = NamedSharding(mesh, spec(mesh, (axis,), (size,))).shard_shape((size,))
    return size // part


def shardings(mesh: Mesh, boxed: Any) -> Any:
    """The sharding of each parameter, from arrays or shapes that are boxed with logical axes.

    What is not boxed stays whole on every device.
    """

    def of(leaf: Any) -> NamedSharding:
        boxed = isinstance(leaf, nn.Partitioned)
        array = leaf.value if boxed else leaf
        axes = leaf.names if boxed else (None,) * array.ndim
        return NamedSharding(mesh, spec(mesh, axes, array.shape))

    return jax.tree.map(of, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))


def follow(mesh: Mesh, state: Any, params: Any, layout: Any) -> Any:
    """The sharding of each leaf of an optimizer's state (shapes): that of its parameter.

    A leaf belongs to the parameter whose path its own contains. Where their shapes differ, as for
    factored second moments or for matrices whose heads are folded, each dimension of the leaf
    follows those of the parameter that it is the product of. Any other leaf stays whole.
    """
    of_path = {
        _names(path): (leaf.shape, sharding.spec)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(layout), strict=True
        )
    }

    def of(path: tuple, leaf: Any) -> NamedSharding:
        names = _names(path)
        runs = (names[i:j] for i in range(len(names)) for j in range(len(names), i, -1))
        match = max((run for run in runs if run in of_path), key=len, default=None)
        if match is None:
            return NamedSharding(mesh, PartitionSpec())
        return NamedSharding(mesh, _folded(leaf.shape, *of_path[match]))

    return jax.tree_util.tree_map_with_path(of, state)


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)


def _folded(shape: Sequence[int], whole: Sequence[int], cut: Sequence[Any]) -> PartitionSpec:
    """The specification of `shape`, whose dimensions are products of consecutive ones of `whole`.

    A product is sharded as its first factor is. What is not such a product stays whole.
    """
    parts, start = [], 0
    for size in shape:
        runs = (
            (first, end)
            for first in range(start, len(whole))
            for end in range(first + 1, len(whole) + 1)
            if math.prod(whole[first:end]) == size
        )
        first, start = next(runs, (None, start))
        parts.append(None if first is None else cut[first])
    return PartitionSpec(*parts)


def batch_sharding(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
    """Where an array of a batch lies; its shape is (B,), or (B, length, ...)."""
    axes = ("batch", "length", *[None] * len(shape))[: len(shape)]
    return NamedSharding(mesh, spec(mesh, axes, shape))


def local_rows(mesh: Mesh, rows: int) -> list[int]:
    """Which rows of a global batch lie on devices of this host."""
    indices = batch_sharding(mesh, (rows,)).addressable_devices_indices_map((rows,)).values()
    return sorted({row for index in indices if index is not None for row in range(rows)[index[0]]})


def place(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Puts a global batch on the devices of the mesh.

    batch: in its global shape; each host reads only its `local_rows`.
    """

    def put(array: np.ndarray) -> jax.Array:
        layout = batch_sharding(mesh, array.shape)
        return jax.make_array_from_process_local_data(layout, array, array.shape)

    return {name: put(array) for name, array in batch.items()}


def place_ahead(streams: Streams, mesh: Mesh, depth: int = 2) -> Generator[Placed]:
    """Yields (batch on the devices, state of the streams after it), prepared by a thread.

    Up to `depth` batches are ready or in the making while the caller works. The state belongs to
    its batch, however far ahead the thread is: streams set to it continue with the next batch. What
    the thread raises is raised here, in place of the batch. Closing the generator (use
    contextlib.closing) ends the thread.
    """

    def next_placed() -> Placed:
        batch = next(streams)
        return place(mesh, batch), streams.get_state()

    # One worker: batches are made one after the other, in the order of their futures.
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="place_ahead")
    try:
        ahead = deque(executor.submit(next_placed) for _ in range(depth))
        while True:
            placed = ahead.popleft().result()
            ahead.append(executor.submit(next_placed))
            yield placed
    finally:
        executor.shutdown(cancel_futures=True)
