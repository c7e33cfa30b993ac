"""The most that an accelerator can do, by its name.

Figures of TPUs are from docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, November 2026; those
of GPUs are from NVIDIA, without sparsity. It imports the standard library alone: the Cloud TPU
launcher reads these names where nothing else is installed.
"""

import re
from typing import Any, NamedTuple

_GBIT = 1e9 / 8


class Peak(NamedTuple):
    """The most that one device can do in a second; 0 where it has no such thing.

    flops: of bfloat16 products. memory_bytes: what its HBM moves. ici_bytes: what it sends to its
    neighbours over all links (half of what Google calls bidirectional). dcn_bytes: what it sends
    from slice to slice, over the network of the data centre.
    """

    flops: float
    memory_bytes: float
    ici_bytes: float = 0.0
    dcn_bytes: float = 0.0


TPUS = {
    # Google names no network bandwidth for it; it is taken for v5e's.
    "v4": Peak(275e12, 1200e9, 300e9, 25 * _GBIT),
    "v5e": Peak(197e12, 819e9, 200e9, 25 * _GBIT),
    "v5p": Peak(459e12, 2765e9, 600e9, 50 * _GBIT),
    "v6e": Peak(918e12, 1638e9, 400e9, 100 * _GBIT),
    # One of the two devices that JAX sees in a chip
    "tpu7x": Peak(2307e12 / 2, 7380e9 / 2, 600e9 / 2, 100 * _GBIT / 2),
}
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


def local_peak(device: Any) -> Peak | None:
    """The most that a device of this machine can do; None where it is not known, as for a CPU."""
    kind = device.device_kind
    if kind.startswith("TPU") and (generation := _KINDS.get(kind.removeprefix("TPU"))):
        return TPUS[generation]
    names = re.findall(r"\w+", kind)  # an L40S is not an L4
    return next((peak for name, peak in _GPUS.items() if name in names), None)
