"""The slices that TPUs come in, by the accelerator types that Google names.

It imports the standard library and `chips` alone: the Cloud TPU launcher reads these names where
nothing else is installed. `preflight` makes devices of them.
"""

import dataclasses
import itertools
import math
import re
from typing import Any

from transformer_jax.devices.chips import TPUS, Peak

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Tpu:
    """One generation.

    memory: bytes of a chip's HBM that libtpu 0.0.42 leaves to a program. dimensions: of the torus.
    counted: what the number of an accelerator type counts in one chip. devices: that JAX sees in
    one chip. largest: chips of a slice. options: of libtpu, in addition to the shape.
    """

    memory: float
    dimensions: int
    counted: int
    devices: int
    largest: int
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


_TPUS = {
    # One device a chip, as on Cloud TPUs
    "v4": Tpu(30.75 * _GIB, 3, 2, 1, 4096, {"chip_config_name": "megacore"}),
    "v5e": Tpu(15.75 * _GIB, 2, 1, 1, 256),
    "v5p": Tpu(95.74 * _GIB, 3, 2, 1, 8960),
    "v6e": Tpu(31.25 * _GIB, 2, 1, 1, 256),
    "tpu7x": Tpu(189.5 * _GIB, 3, 2, 2, 9216),
}
_SPELLINGS = {"v5litepod": "v5e"}
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
    tpu: Tpu
    number: int
    chips: int
    shape: str
    slices: int

    @property
    def peak(self) -> Peak:
        """The most that one device can do."""
        return TPUS[self.generation]

    @property
    def memory(self) -> float:
        """Bytes of HBM that a program may fill on one device."""
        return self.tpu.memory / self.tpu.devices

    @property
    def host(self) -> tuple[int, int, int]:
        """The chips of one host along each dimension of the torus."""
        if self.tpu.dimensions == 2 and self.chips <= 8:
            rows, columns = map(int, self.shape.split("x"))
            return rows, columns, 1
        return 2, 2, 1

    @property
    def hosts(self) -> int:
        """The hosts of one slice."""
        return self.chips // math.prod(self.host)

    def __str__(self) -> str:
        chips = self.slices * self.chips
        of = f"{self.slices} slices of {self.shape}" if self.slices > 1 else self.shape
        devices = f", {chips * self.tpu.devices} devices" if self.tpu.devices > 1 else ""
        return f"{self.name}: {chips} {self.generation} chips ({of}){devices}"


def parse(name: str) -> Slice:
    """The slice of an accelerator type as Google names it, several as "2xv5e-256".

    The number counts TensorCores in v4-N, v5p-N and tpu7x-N, of which a chip has two, and chips in
    v5litepod-N (also v5e-N) and v6e-N. The shape is Google's default, the most cubic one.

    Raises:
      ValueError: there is no such generation or no slice of this size.
    """
    match = re.fullmatch(r"(?:(\d+)x)?([a-z0-9]*[a-z][a-z0-9]*)-(\d+)", name)
    generation = _SPELLINGS.get(match[2], match[2]) if match else ""
    if match is None or generation not in _TPUS:
        raise ValueError(
            f"{name!r} is not an accelerator type: expected one like v4-8, v5e-16, v5p-32, v6e-256 "
            "or tpu7x-8, or several slices like 2xv5e-256"
        )
    tpu, slices, number = _TPUS[generation], int(match[1] or 1), int(match[3])
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
    return Slice(name, generation, tpu, number, chips, shape, slices)


def _shape(chips: int, dimensions: int) -> str | None:
    if dimensions == 2:
        return _PLANES.get(chips)
    if chips < 64 or chips % 64:
        return _SMALL_BLOCKS.get(chips)
    cubes = chips // 64
    sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
    boxes = [box for box in itertools.product(sides, repeat=3) if math.prod(box) == cubes]
    return "x".join(str(4 * side) for side in sorted(min(boxes, key=sum)))
