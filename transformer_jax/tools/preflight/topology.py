"""Devices to compile for: those of TPU slices that nobody has, and the memory of this machine's."""

import importlib.util
import os
from typing import Any

import jax
from jax.experimental import topologies

from transformer_jax.process import machine
from transformer_jax.tools import accelerators


def devices(of: accelerators.Slice) -> list[Any]:
    """Devices that can be compiled for, without having them.

    Raises:
      RuntimeError: libtpu, which has the compiler, is not installed.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise RuntimeError(
            "compiling for a TPU needs libtpu, which has its compiler: run ./launch.sh preflight, "
            "which keeps it in an environment of its own, or pip install 'transformer_jax"
            "[preflight]' and set JAX_PLATFORMS=cpu"
        )
    # Otherwise it looks for the TPU of this machine, and complains that there is none.
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    # There is no TPU here for which two processes could compete.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    sizes = [int(size) for size in of.shape.split("x")]
    flat = len(sizes) == 2
    wrapped = [size == 16 for size in (*sizes, 1)] if flat else [of.chips >= 64] * 3
    return topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{of.generation}:{of.shape}",
        chips_per_host_bounds=of.host,
        wrap=tuple(wrapped),
        num_slices=of.slices,
        **of.tpu.options,
    ).devices


def local_memory(device: Any) -> float:
    """Bytes of memory that programs on one device of this machine may fill."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return machine.memory().whole / len(jax.local_devices())
