"""How programs are compiled, and kept on the disk for later processes by JAX's own cache."""

import contextlib
import hashlib
import os
import platform
import warnings
from pathlib import Path

import jax
from jax.sharding import Mesh

from transformer_jax.process import machine

MOST_BYTES = 2**30

# The environment variables by which JAX itself is told where to keep programs, and which.
_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
# What XLA is told, in addition to the program, when a training step is compiled, by platform.
# Preflight compiles the same step, and so with the same options; `docs/devices.md` has its figures.
OPTIONS: dict[str, dict[str, str]] = {
    "tpu": {
        # Otherwise XLA turns a product with a weight that is sharded over fsdp into a loop over its
        # shards (windowed einsum), so that products overlap with exchanges. Each iteration reads
        # and writes the whole sum so far: of bert_large's traffic these were 153 of 234 GB, and
        # with this option 21% of all FLOPs become 40%. XLA gathers the whole weight instead, which
        # it can still start before the layer that needs it, but no more in the midst of a product.
        "xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000",
    }
}


def keep(cache_dir: str | Path) -> None:
    """Has programs that this process compiles kept in `cache_dir`, and taken from there.

    JAX runs whatever native code it finds there. The first call of a process decides, and before it
    JAX's environment variables where they are set. Nothing that is wrong with the folder stops a
    run or shows: a program that cannot be read is compiled, one that cannot be written is not kept.
    Processes may share the folder.
    """
    if _FOLDER in os.environ or jax.config.jax_compilation_cache_dir:  # pyright: ignore
        return
    try:
        folder = Path(cache_dir).expanduser().absolute()
    except RuntimeError:  # the user has no home
        jax.config.update("jax_enable_compilation_cache", False)  # nor is another folder taken
        return
    # A program for the CPU consists of instructions that other kinds may not have, and is divided
    # among the cores that there are: with more or fewer it would round otherwise.
    folder = folder / "compiled" / f"{machine.cores()}_cores_of_{_kind(Path('/proc/cpuinfo'))}"
    with contextlib.suppress(OSError):
        make_room(folder, MOST_BYTES)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # XLA's own caches for GPUs end a run that cannot write them.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if _SECONDS not in os.environ:
        # Those that take less are no slower to compile than to read.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def make_room(folder: Path, most: int) -> None:
    """Deletes the files of a folder that were longest not used, until the others fit into `most`.

    JAX can do this too, but after a process was killed while it wrote a file, it keeps no other.
    Empty ones, which a full disk may leave, are deleted too: JAX would never write them again.

    most: bytes.
    """
    files = [(path, path.stat()) for path in folder.glob("*")]
    files.sort(key=lambda file: max(file[1].st_atime, file[1].st_mtime), reverse=True)
    total = 0
    for path, status in files:
        total += status.st_size
        if total > most or not status.st_size:
            path.unlink(missing_ok=True)


def _kind(cpuinfo: Path) -> str:
    """What distinguishes this processor from those with other instructions."""
    instructions = {platform.machine(), platform.processor()}
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        instructions |= {line for line in lines if line.lower().startswith(("flags", "features"))}
    return hashlib.sha256(repr(sorted(instructions)).encode()).hexdigest()[:8]


def options(mesh: Mesh) -> dict[str, str]:
    """The options for the devices of a mesh."""
    return OPTIONS.get(mesh.devices.flat[0].platform, {})
