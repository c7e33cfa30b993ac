"""Accelerators by name: what each can do at most, and the slices that TPUs come in.

Figures of TPUs are from docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, November 2026; those
of GPUs are from NVIDIA, without sparsity. It imports the standard library alone: the Cloud TPU
launcher reads these names where nothing else is installed. `topology` makes devices of them.
"""

import dataclasses
import itertools
import math
import re
from typing import Any

_GIB, _GBIT = 2**30, 1e9 / 8


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most that one device can do in a second; 0 where it has no such thing.

    flops: of bfloat16 products. memory_bytes: what its HBM moves. ici_bytes: what it sends to its
    neighbours over all links (half of what Google calls bidirectional). dcn_bytes: what it sends
    from slice to slice, over the network of the data centre.
    """

    flops: float
    memory_bytes: float
    ici_bytes: float = 0.0
    dcn_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Tpu:
    """One generation.

    peak: of a chip. memory: bytes of its HBM that libtpu 0.0.42 leaves to a program. dimensions: of
    the torus. counted: what the number of an accelerator type counts in one chip. devices: that JAX
    sees in one chip. largest: chips of a slice. options: of libtpu, in addition to the shape.
    """

    peak: Peak
    memory: float
    dimensions: int
    counted: int
    devices: int
    largest: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


_TPUS = {
    "v4": _Tpu(
        # Google names no network bandwidth for it; it is taken for v5e's.
        peak=Peak(275e12, 1200e9, 300e9, 25 * _GBIT),
        memory=30.75 * _GIB,
        dimensions=3,
        counted=2,
        devices=1,
        largest=4096,
        options={"chip_config_name": "megacore"},  # one device a chip, as on Cloud TPUs
    ),
    "v5e": _Tpu(Peak(197e12, 819e9, 200e9, 25 * _GBIT), 15.75 * _GIB, 2, 1, 1, 256),
    "v5p": _Tpu(Peak(459e12, 2765e9, 600e9, 50 * _GBIT), 95.74 * _GIB, 3, 2, 1, 8960),
    "v6e": _Tpu(Peak(918e12, 1638e9, 400e9, 100 * _GBIT), 31.25 * _GIB, 2, 1, 1, 256),
    "tpu7x": _Tpu(Peak(2307e12, 7380e9, 600e9, 100 * _GBIT), 189.5 * _GIB, 3, 2, 2, 9216),
}
_SPELLINGS = {"v5litepod": "v5e"}
# By a word of `device_kind`.
_GPUS = {
    "A100": Peak(312e12, 2039e9, 300e9),
    "H100": Peak(989e12, 3350e9, 450e9),
    "H200": Peak(989e12, 4800e9, 450e9),
    "B200": Peak(2250e12, 8000e9, 900e9),
    "L4": Peak(121e12, 300e9),
}
# What `device_kind` of a TPU says behind "TPU", by generation.
_KINDS = {
    " v4": "v4",
    " v5 lite": "v5e",
    " v5e": "v5e",
    " v5": "v5p",
    " v5p": "v5p",
    " v6 lite": "v6e",
    " v6e": "v6e",
    "7x": "tpu7x",
}
_PLANES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_SMALL_BLOCKS = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}


@dataclasses.dataclass(frozen=True)
class Slice:
    """A TPU slice, or several that the network of the data centre connects.

    number: what the accelerator type says, chips or TensorCores of one slice. chips: of one slice.
    shape: of its torus, as "2x2x4".
    """

    name: str
    generation: str
    number: int
    chips: int
    shape: str
    slices: int

    @property
    def peak(self) -> Peak:
        """The most that one device can do."""
        return _device_peak(self.generation)

    @property
    def memory(self) -> float:
        """Bytes of HBM that a program may fill on one device."""
        tpu = _TPUS[self.generation]
        return tpu.memory / tpu.devices

    @property
    def host(self) -> tuple[int, int, int]:
        """The chips of one host along each dimension of the torus."""
        if _TPUS[self.generation].dimensions == 2 and self.chips <= 8:
            rows, columns = map(int, self.shape.split("x"))
            return rows, columns, 1
        return 2, 2, 1

    @property
    def hosts(self) -> int:
        """The hosts of one slice."""
        return self.chips // math.prod(self.host)

    @property
    def options(self) -> dict[str, Any]:
        """What libtpu is told of the generation, in addition to the shape."""
        return _TPUS[self.generation].options

    def __str__(self) -> str:
        tpu, chips = _TPUS[self.generation], self.slices * self.chips
        of = f"{self.slices} slices of {self.shape}" if self.slices > 1 else self.shape
        devices = f", {chips * tpu.devices} devices" if tpu.devices > 1 else ""
        return f"{self.name}: {chips} {self.generation} chips ({of}){devices}"


def parse(name: str) -> Slice:
    """The slice of an accelerator type as Google names it, several as "2xv5e-256".

    The number counts TensorCores in v4-N, v5p-N and tpu7x-N, of which a chip has two, and chips in
    v5litepod-N (also v5e-N) and v6e-N. The shape is Google's default, the most cubic one.

    Raises:
      ValueError: there is no such generation or no slice of this size.
    """
    found = re.fullmatch(r"(?:(\d+)x)?([a-z0-9]*[a-z][a-z0-9]*)-(\d+)", name)
    generation = _SPELLINGS.get(found[2], found[2]) if found else ""
    if found is None or generation not in _TPUS:
        raise ValueError(
            f"{name!r} is not an accelerator type: expected one like v4-8, v5e-16, v5p-32, v6e-256 "
            "or tpu7x-8, or several slices like 2xv5e-256"
        )
    tpu, slices, number = _TPUS[generation], int(found[1] or 1), int(found[3])
    chips, rest = divmod(number, tpu.counted)
    shape = None if rest or chips > tpu.largest else _shape(chips, tpu.dimensions)
    if shape is None or slices < 1:
        sizes = _PLANES if tpu.dimensions == 2 else (*_SMALL_BLOCKS, 64, 128, 256, 512)
        near = ", ".join(f"{generation}-{size * tpu.counted}" for size in sizes)
        counts = "TensorCores, two a chip" if tpu.counted == 2 else "chips"
        more = " and further multiples of 64 chips" * (tpu.dimensions == 3)
        raise ValueError(
            f"{name!r} is not a slice: {generation} comes in other sizes: {near}{more} "
            f"(the number counts {counts})"
        )
    return Slice(name, generation, number, chips, shape, slices)


def local_peak(device: Any) -> Peak | None:
    """The most that a device of this machine can do; None where it is not known, as for a CPU."""
    kind = device.device_kind
    if kind.startswith("TPU") and (generation := _KINDS.get(kind.removeprefix("TPU"))):
        return _device_peak(generation)
    names = re.findall(r"\w+", kind)  # an L40S is not an L4
    return next((peak for name, peak in _GPUS.items() if name in names), None)


def _device_peak(generation: str) -> Peak:
    """The share of a chip's peak that one of its devices has."""
    tpu = _TPUS[generation]
    return Peak(*(value / tpu.devices for value in dataclasses.astuple(tpu.peak)))


def _shape(chips: int, dimensions: int) -> str | None:
    if dimensions == 2:
        return _PLANES.get(chips)
    if chips < 64 or chips % 64:
        return _SMALL_BLOCKS.get(chips)
    cubes = chips // 64
    sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
    boxes = [box for box in itertools.product(sides, repeat=3) if math.prod(box) == cubes]
    return "x".join(str(4 * side) for side in sorted(min(boxes, key=sum)))
