"""Devices that are none, for meshes on which nothing is computed."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Device:
    """As much of a device as a mesh looks at."""

    id: int
    slice_index: int = 0
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = "chip"


def devices(count: int, slices: int = 1) -> list[Device]:
    """So many, in equal slices."""
    return [Device(number, slice_index=number * slices // count) for number in range(count)]
