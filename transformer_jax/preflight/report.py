"""What a run needs of devices, by compiling its own programs for them: memory, work, exchanges.

The devices may be a TPU slice that nobody has: libtpu compiles for any, on a laptop. Times are what
the roofline allows (Williams et al. 2009): nothing is run, and real steps are slower.
"""

import dataclasses
import itertools
import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import jax

from transformer_jax import inference
from transformer_jax.build import Run
from transformer_jax.devices import mesh as sharding
from transformer_jax.devices.mesh import AXES
from transformer_jax.models.transformer.config import Remat
from transformer_jax.preflight import chips, hlo, topology
from transformer_jax.preflight.chips import Peak

# Settings of a config, by dotted key
Changes = dict[str, Any]
_REMAT: tuple[Remat, ...] = ("none", "dots", "full")  # what is computed again, from least to most
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Target:
    """What is compiled for: its name, devices, and the memory and most speed of one of them.

    peak: None where it is not known, as that of CPUs.
    """

    name: str
    devices: Sequence[Any]
    memory: float
    peak: Peak | None


def target(accelerator: str) -> Target:
    """The slice of an accelerator type, or ("") the devices of this machine.

    Raises:
      ValueError: there is no such accelerator type.
      RuntimeError: libtpu is not installed.
    """
    if accelerator:
        of = chips.parse(accelerator)
        return Target(str(of), topology.devices(of), of.memory, of.peak)
    devices = jax.devices()
    name = f"this machine: {len(devices)} device{'s' * (len(devices) > 1)} {devices[0].device_kind}"
    peak = chips.local_peak(devices[0])
    return Target(name, devices, topology.local_memory(devices[0]), peak)


class TooLarge(Exception):
    """A program does not fit. needed, available: bytes of one device."""

    def __init__(self, needed: float, available: float):
        super().__init__(f"{_gib(needed)} of {_gib(available)} GiB")
        self.needed = needed
        self.available = available


@dataclasses.dataclass(frozen=True)
class Program:
    """What one compiled program takes of a device. Bytes; times in seconds.

    kept: arguments that its results take the place of. traffic: bytes that move through memory.
    flops: of matrix products, what is computed again included; of all devices, evenly shared.
    """

    arguments: float
    results: float
    kept: float
    temporaries: float
    code: float
    traffic: float
    flops: float
    exchanges: list[hlo.Collective]
    seconds_to_compile: float

    @property
    def memory(self) -> float:
        """All bytes that it needs."""
        return self.arguments + self.results - self.kept + self.temporaries + self.code

    def times(self, peak: Peak) -> dict[str, float]:
        """Least time of each thing that a device does, if it did nothing else."""
        sent = [exchange.sent() for exchange in self.exchanges]
        within, between = (sum(part) for part in zip(*sent, strict=True)) if sent else (0.0, 0.0)
        return {
            "products": self.flops / peak.flops,
            "memory": self.traffic / peak.memory_bytes,
            "exchanges": within / peak.ici_bytes if within else 0.0,
            "exchanges between slices": between / peak.dcn_bytes if between else 0.0,
        }


def compile_step(run: Run, memory: float) -> Program:
    """The training step, compiled for the run's mesh.

    Raises:
      TooLarge: one device has less `memory` than it needs.
    """
    return _compile(run, run.train_step(), (run.abstract_state(), run.abstract_batch()), memory)


def compile_decoding(run: Run, memory: float) -> Program | None:
    """What decodes a batch of the longest prompts, likewise; None where nothing is decoded.

    Its loop over tokens counts once: so its flops, traffic and exchanges are those of reading the
    prompts, or encoding them, and of one further token.
    """
    if run.objective not in ("translation", "causal_lm"):
        return None
    decode, arguments = inference.decoding(run, run.abstract_state().params)
    return _compile(run, decode, arguments, memory)


def _compile(run: Run, function: Any, arguments: tuple, memory: float) -> Program:
    started = time.perf_counter()
    try:
        with sharding.use(run.mesh):
            flops = product_flops(function, *arguments)
            compiled = function.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        amounts = re.search(
            r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)", str(error)
        )
        if amounts is None:
            raise
        units = {"K": 2**10, "M": 2**20, "G": 2**30}
        needed, available = (float(amounts[i]) * units[amounts[i + 1]] for i in (1, 3))
        raise TooLarge(needed, available) from None
    seconds = time.perf_counter() - started
    module, found = hlo.parse(compiled.as_text()), compiled.memory_analysis()
    devices = list(run.mesh.devices.flat)
    slices = [getattr(device, "slice_index", None) or 0 for device in devices]
    program = Program(
        arguments=found.argument_size_in_bytes,
        results=found.output_size_in_bytes,
        kept=found.alias_size_in_bytes,
        temporaries=found.temp_size_in_bytes,
        code=found.generated_code_size_in_bytes,
        traffic=hlo.memory_traffic(module),
        flops=flops / len(devices),
        exchanges=hlo.collectives(module, dict(run.mesh.shape), slices),
        seconds_to_compile=seconds,
    )
    if program.memory > memory:
        raise TooLarge(program.memory, memory)
    return program


def model_flops(run: Run) -> float:
    """Those of the products that a training step cannot do without, of all devices.

    Three times the forward pass's, since each product has two in the backward pass; whatever is
    computed again does not count (Chowdhery et al. 2022, 2204.02311, appendix B), and attention
    counts whole rows, masked or not.
    """
    config = dataclasses.replace(run.model.config, attention_kernel="xla", remat="none")
    model = run.model.clone(config=config)

    def forward(params, batch):
        return model.apply({"params": params}, batch, deterministic=True)

    with sharding.use(run.mesh):
        return 3 * product_flops(forward, run.abstract_state().params, run.abstract_batch())


def product_flops(function: Callable[..., Any], *arguments: Any) -> float:
    """Multiplications and additions of all matrix products of a function of these (shapes).

    XLA's own count leaves out that loops repeat. A loop that ends by a condition counts once.
    """
    return _product_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _product_flops(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            left = equation.invars[0].aval.shape
            summed = math.prod(left[axis] for axis in contracted)
            total += 2 * summed * equation.outvars[0].aval.size
        # A Jaxpr has equations; a ClosedJaxpr has one.
        inner = [
            getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(list(parameters.values()))
        ]
        parts = [_product_flops(part) for part in inner if hasattr(part, "eqns")]
        # Of branches one is taken.
        total += _repeats(name, parameters) * (
            max(parts, default=0.0) if name == "cond" else sum(parts)
        )
    return total


def _repeats(name: str, parameters: Mapping[str, Any]) -> int:
    """How often an equation runs what it contains, on all devices together."""
    match name:
        case "scan":
            return parameters["length"]
        case "shard_map":
            return parameters["mesh"].size
        case "pallas_call":
            return math.prod(parameters["grid_mapping"].grid)
    return 1


def report(make: Callable[[Changes], Run], of: Target) -> Iterator[str]:
    """What the run of a config needs, as texts that come when they are known.

    Args:
      make: changes of the config -> the run that it describes then, on the target's devices.

    Raises:
      RuntimeError: something does not fit; the message says by how much and what would.
    """
    run = make({})
    parameters = sum(leaf.size for leaf in jax.tree.leaves(run.abstract_state().params))
    tokens = math.prod(max(run.data.batch_shapes().values()))
    yield f"{of.name}; {_mesh(run)}"
    needed = model_flops(run)
    yield (
        f"{parameters:.3e} parameters; a training step of {tokens:.3e} tokens takes "
        f"{needed:.3e} FLOPs ({needed / (6 * parameters * tokens):.2f} times 6 N D)"
    )
    program = yield from _fitting(make, of, "training step", compile_step, _lighter_steps(run))
    yield from _texts("Training step", program, of)
    if of.peak:
        least = max(program.times(of.peak).values())
        share = needed / (least * of.peak.flops * run.mesh.size)
        yield f"  {tokens / least:.3e} tokens a second, and {share:.0%} of all FLOPs, at most"
    program = yield from _fitting(make, of, "decoding", compile_decoding, _lighter_decoding(run))
    if program:
        yield from _texts("Decoding: the prompts, and one further token", program, of)


def search(make: Callable[[Changes], Run], of: Target) -> Iterator[str]:
    """Tries every mesh of the devices with every remat policy; then lists what fits, fastest first.

    Meshes that the run refuses, or that cut heads or hidden units unevenly, are left out.
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
    for _, changes, program in sorted(fitting, key=lambda found: found[0]):
        yield f"  {_outcome(program, of)}: {_flags(changes)}"


def _candidates(run: Run, devices: int) -> Iterator[Changes]:
    config = run.model.config
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for mesh in itertools.product(sizes, repeat=len(AXES)):
        cut = dict(zip(AXES, mesh, strict=True))
        even = config.num_heads % cut["tensor"] == 0 == config.d_ff % cut["tensor"]
        if math.prod(mesh) == devices and even:
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
        excess = _gib(error.needed - error.available)
        failure = f"the {what} needs {error} of each device, {excess} GiB too much"
    yield f"{failure[0].upper()}{failure[1:]}. What would make it fit:"
    for changes in lighter:
        try:
            program = compile(make(changes), of.memory)
        except TooLarge as error:
            yield f"  not {_flags(changes)}: {error}"
            continue
        yield f"  {_flags(changes)}: {_gib(program.memory)} GiB"
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
    rows, accumulation = max(run.data.batch_shapes().values())[0], run.train.accumulation_steps
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
        f"{name}: fits, {_gib(program.memory)} of {_gib(of.memory)} GiB of each device "
        f"(compiled in {program.seconds_to_compile:.0f} s)\n"
        f"  arguments {_gib(program.arguments)}, results {_gib(program.results)} of which "
        f"{_gib(program.kept)} take the place of arguments, temporaries "
        f"{_gib(program.temporaries)}, code {_gib(program.code)} GiB\n"
        f"  a device multiplies and adds {program.flops:.3e} FLOPs and moves "
        f"{program.traffic:.3e} bytes of memory: {program.flops / program.traffic:.0f} FLOPs a byte"
        + (f" (balanced at {of.peak.flops / of.peak.memory_bytes:.0f})" if of.peak else "")
    )
    yield from _exchanges(program)
    if of.peak:
        times = program.times(of.peak)
        longest = max(times, key=lambda part: times[part])
        parts = ", ".join(f"{part} {_seconds(value)}" for part, value in times.items() if value)
        yield f"  at least {_seconds(times[longest])}, for {longest} ({parts})"


def _exchanges(program: Program) -> Iterator[str]:
    """A line for each kind and its axes; those of less than a thousandth of the bytes together."""
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
    text = f"{_gib(program.memory)} GiB"
    if of.peak:
        times = program.times(of.peak)
        longest = max(times, key=lambda part: times[part])
        text = f"{_seconds(times[longest])} ({longest}), {text}"
    return text


def _rank(program: Program, of: Target) -> tuple[float, float]:
    """By least time, or where speeds are not known by work; then by all times together."""
    times = program.times(of.peak) if of.peak else {"products": program.flops}
    return max(times.values()), sum(times.values())


def _flags(changes: Changes) -> str:
    return " ".join(f"--config.{key}={value}" for key, value in changes.items())


def _mesh(run: Run) -> str:
    return "mesh " + ", ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
