"""Reports what a run needs of devices, and searches for settings that fit.

The devices may be a TPU slice that nobody has: libtpu compiles for any, on a laptop. Times are what
the roofline allows (Williams et al. 2009): nothing is run, and real steps are slower.
"""

import dataclasses
import importlib.util
import itertools
import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from transformer_jax.config.build import build
from transformer_jax.config.load import replace
from transformer_jax.configs.default import Config
from transformer_jax.devices.chips import Peak, local_peak
from transformer_jax.devices.mesh import AXES
from transformer_jax.inspection.flops import model_flops
from transformer_jax.models.layers.stack import REMAT
from transformer_jax.process import machine
from transformer_jax.run import Run
from transformer_jax.tools import accelerators
from transformer_jax.tools.preflight import explain
from transformer_jax.tools.preflight.program import (
    Program,
    TooLarge,
    compile_decoding,
    compile_step,
    gib,
)

# Settings of a config, by dotted key
Changes = dict[str, Any]
_REMAT = tuple(REMAT)  # what is computed again, from least to most


@dataclasses.dataclass(frozen=True)
class Target:
    """What programs are compiled for.

    memory: bytes of one device. peak: its greatest speeds; None where they are not known, as for
    CPUs.
    """

    name: str
    devices: Sequence[Any]
    memory: float
    peak: Peak | None


def preflight(config: Config, workdir: Path | None, searched: bool, explained: bool) -> int:
    """Prints what the run needs of the devices of mesh.topology, without having or using them.

    Args:
      searched: instead which meshes and remat policies fit, fastest first.
      explained: also what moves the memory.

    Raises:
      ValueError: both are asked for.
    """
    if searched and explained:
        raise ValueError("--search compiles many programs and --explain one: leave one of them out")
    of = target(config.mesh.topology)

    def make(changes: Changes) -> Run:
        return build(replace(config, changes), workdir, of.devices)

    for text in search(make, of) if searched else report(make, of, explained=explained):
        print(text, flush=True)
    return 0


def target(accelerator: str) -> Target:
    """The slice of an accelerator type, or ("") the devices of this machine.

    Raises:
      ValueError: there is no such accelerator type.
      RuntimeError: libtpu is not installed.
    """
    if accelerator:
        of = accelerators.parse(accelerator)
        return Target(str(of), _absent_devices(of), of.memory, of.peak)
    devices = jax.devices()
    name = f"this machine: {len(devices)} device{'s' * (len(devices) > 1)} {devices[0].device_kind}"
    peak = local_peak(devices[0])
    # Bytes that programs on one device may fill.
    stats = devices[0].memory_stats() or {}
    memory = stats.get("bytes_limit", machine.memory().whole / len(jax.local_devices()))
    return Target(name, devices, memory, peak)


def _absent_devices(of: accelerators.Slice) -> list[Any]:
    """Those of a TPU slice that nobody has, which can be compiled for.

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


def report(make: Callable[[Changes], Run], of: Target, *, explained: bool) -> Iterator[str]:
    """Yields what the run of a config needs, as texts that come when they are known.

    Args:
      make: changes of the config -> the run that it describes then, on the target's devices.
      explained: whether to list what moves the memory too.

    Raises:
      RuntimeError: something does not fit; the message says by how much and what would.
    """
    run = make({})
    parameters = sum(leaf.size for leaf in jax.tree.leaves(run.abstract_state.params))
    tokens = max(math.prod(shape[:2]) for shape, _ in run.data.batch_shapes().values())
    sizes = ", ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())
    yield f"{of.name}; mesh {sizes}"
    needed = model_flops(run)
    yield (
        f"{parameters:.3e} parameters; a training step of {tokens:.3e} tokens takes "
        f"{needed:.3e} FLOPs ({needed / (6 * parameters * tokens):.2f} times 6 N D)"
    )
    program = yield from _fitting(make, of, "training step", compile_step, _lighter_steps(run))
    yield from _texts("Training step", program, of)
    if explained:
        yield from explain.tables_of(program.moves)
    if of.peak:
        least = max(program.times(of.peak).values())
        share = needed / (least * of.peak.flops * run.mesh.size)
        yield f"  {tokens / least:.3e} tokens a second, and {share:.0%} of all FLOPs, at most"
    program = yield from _fitting(make, of, "decoding", compile_decoding, _lighter_decoding(run))
    if program:
        yield from _texts("Decoding: the prompts, and one further token", program, of)
        if explained:
            yield from explain.tables_of(program.moves)


def search(make: Callable[[Changes], Run], of: Target) -> Iterator[str]:
    """Tries every mesh of the devices with every remat policy; then lists what fits, fastest first.

    Meshes that the run refuses, or that would shard heads or hidden units unevenly, are left out.
    """
    fitting = []
    for changes in _candidates(make({}), len(of.devices)):
        try:
            run = make(changes)
        except ValueError:
            continue
        try:
            program = compile_step(run, of.memory)
        except TooLarge as error:
            yield f"{_flags(changes)}: too large, {error} a device"
            continue
        yield f"{_flags(changes)}: {_outcome(program, of)}"
        fitting.append((_rank(program, of), changes, program))
    yield f"\n{len(fitting)} fit{'s' * (len(fitting) == 1)}, fastest first:"
    for _, changes, program in sorted(fitting, key=lambda row: row[0]):
        yield f"  {_outcome(program, of)}: {_flags(changes)}"


def _candidates(run: Run, devices: int) -> Iterator[Changes]:
    config = run.model.config
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for mesh in itertools.product(sizes, repeat=len(AXES)):
        cut = dict(zip(AXES, mesh, strict=True))
        if math.prod(mesh) == devices and config.divides(cut["tensor"]):
            for remat in _REMAT:
                yield {f"mesh.{axis}": size for axis, size in cut.items()} | {"model.remat": remat}


def _fitting(
    make: Callable[[Changes], Run],
    of: Target,
    what: str,
    compile: Callable[[Run, float], Any],
    lighter: Iterator[Changes],
) -> Generator[str, None, Any]:
    """Returns the program of the run, if it fits; otherwise names a lighter run that does."""
    try:
        return compile(make({}), of.memory)
    except TooLarge as error:
        excess = gib(error.needed - error.available)
        failure = f"the {what} needs {error} of each device, {excess} GiB too much"
    yield f"{failure[0].upper()}{failure[1:]}. What would make it fit:"
    for changes in lighter:
        try:
            program = compile(make(changes), of.memory)
        except TooLarge as error:
            yield f"  not {_flags(changes)}: {error}"
            continue
        yield f"  {_flags(changes)}: {gib(program.memory)} GiB"
        raise RuntimeError(f"{failure}; it fits with {_flags(changes)}")
    raise RuntimeError(f"{failure}, and no such change makes it fit: take more or larger devices")


def _lighter_steps(run: Run) -> Iterator[Changes]:
    """Each step lighter than the one before, and mostly slower."""
    changes: Changes = {}
    for remat in _REMAT[_REMAT.index(run.model.config.remat) + 1 :]:
        changes = changes | {"model.remat": remat}
        yield changes
    slices = len({getattr(device, "slice_index", None) for device in run.mesh.devices.flat})
    if run.mesh.shape["data"] > slices:
        changes = changes | {"mesh.data": slices, "mesh.fsdp": -1}
        yield changes
    parts = run.mesh.shape["data"] * run.mesh.shape["fsdp"]
    rows, accumulation = run.data.settings.batch_size, run.train.accumulation_steps
    while rows % (2 * accumulation * parts) == 0:
        accumulation *= 2
        changes = changes | {"train.accumulation_steps": accumulation}
        yield changes


def _lighter_decoding(run: Run) -> Iterator[Changes]:
    rows = run.data.settings.evaluation_batch_size
    while rows > run.mesh.shape["data"] * run.mesh.shape["fsdp"]:
        rows //= 2
        yield {"evaluate.batch_size": rows}


def _texts(name: str, program: Program, of: Target) -> Iterator[str]:
    yield (
        f"{name}: fits, {gib(program.memory)} of {gib(of.memory)} GiB of each device "
        f"(compiled in {program.seconds_to_compile:.0f} s)\n"
        f"  arguments {gib(program.arguments)}, results {gib(program.results)} of which "
        f"{gib(program.aliased)} take the place of arguments, temporaries "
        f"{gib(program.temporaries)}, code {gib(program.code)} GiB\n"
        f"  a device multiplies and adds {program.flops:.3e} FLOPs and moves "
        f"{program.traffic:.3e} bytes of memory: {program.flops / program.traffic:.0f} FLOPs a byte"
        + (f" (balanced at {of.peak.flops / of.peak.memory_bytes:.0f})" if of.peak else "")
    )
    yield from _exchanges(program)
    if of.peak:
        times = program.times(of.peak)
        longest = max(times, key=lambda part: times[part])
        parts = ", ".join(f"{part} {_seconds(value)}" for part, value in times.items() if value)
        yield (
            f"  at least {_seconds(times[longest])}, for {longest} ({parts}); "
            f"{_seconds(program.unhidden_time(of.peak))} if exchanges overlapped with nothing"
        )


def _exchanges(program: Program) -> Iterator[str]:
    """A line for each kind of exchange and its axes; one for all that are under a thousandth."""
    sent = [sum(exchange.sent()) for exchange in program.exchanges]
    rest = 0.0
    for exchange, size in zip(program.exchanges, sent, strict=True):
        if size < sum(sent) / 1000:
            rest += size
            continue
        among = f"{exchange.group} of {' x '.join(exchange.axes)}"
        between = f", {exchange.sent()[1]:.3e} of them between slices" * (exchange.across > 1)
        yield (
            f"  {exchange.kind:18} among {among:22} {exchange.calls:5} times: each sends "
            f"{size:.3e} bytes{between}"
        )
    if rest:
        yield f"  other exchanges: each sends {rest:.3e} bytes"


def _outcome(program: Program, of: Target) -> str:
    text = f"{gib(program.memory)} GiB"
    if of.peak:
        times = program.times(of.peak)
        longest = max(times, key=lambda part: times[part])
        text = f"{_seconds(times[longest])} ({longest}), {text}"
    return text


def _rank(program: Program, of: Target) -> tuple[float, float]:
    """Least time, or work where speeds are not known; then the sum of all times."""
    times = program.times(of.peak) if of.peak else {"products": program.flops}
    return max(times.values()), sum(times.values())


def _flags(changes: Changes) -> str:
    return " ".join(f"--config.{key}={value}" for key, value in changes.items())


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
