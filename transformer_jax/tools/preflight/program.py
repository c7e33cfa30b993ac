"""What one program of a run takes of a device, by compiling it: memory, work, exchanges."""

import dataclasses
import functools
import re
import time
from typing import Any

import jax

from transformer_jax.devices.chips import Peak
from transformer_jax.devices.mesh import use
from transformer_jax.evaluation.decoder import prompt_shapes
from transformer_jax.evaluation.generate import decode_batch
from transformer_jax.inspection.flops import product_flops
from transformer_jax.run import Run
from transformer_jax.tools.preflight import explain, hlo
from transformer_jax.tools.preflight.explain import Move


class TooLarge(Exception):
    """A program does not fit. needed, available: bytes of one device."""

    def __init__(self, needed: float, available: float):
        super().__init__(f"{gib(needed)} of {gib(available)} GiB")
        self.needed = needed
        self.available = available


@dataclasses.dataclass(frozen=True)
class Program:
    """What one compiled program takes of a device. Bytes; times in seconds.

    aliased: arguments whose place the results take. moves: what moves through memory. flops: those
    of matrix products, including what is computed again; each device does an even share of them.
    """

    arguments: float
    results: float
    aliased: float
    temporaries: float
    code: float
    moves: list[Move]
    flops: float
    exchanges: list[hlo.Collective]
    seconds_to_compile: float

    @property
    def traffic(self) -> float:
        """Bytes that move through memory."""
        return sum(move.moved for move in self.moves)

    @property
    def memory(self) -> float:
        """All bytes that it needs."""
        return self.arguments + self.results - self.aliased + self.temporaries + self.code

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

    def unhidden_time(self, peak: Peak) -> float:
        """Least time where no exchange overlaps with anything else."""
        products, memory, *exchanges = self.times(peak).values()
        return max(products, memory) + sum(exchanges)


def compile_step(run: Run, memory: float) -> Program:
    """The training step, compiled for the run's mesh.

    Raises:
      TooLarge: one device has less `memory` than it needs.
    """
    return _compile(run, run.train_step(), (run.abstract_state, run.abstract_batch()), memory)


def compile_decoding(run: Run, memory: float) -> Program | None:
    """The decoding of a batch of the longest prompts, likewise; None where nothing is decoded.

    Its loop over tokens counts once: so flops, traffic and exchanges are for reading or encoding
    the prompts and for one further token.
    """
    if run.task.limit is None:
        return None
    settings, params = run.data.settings, run.abstract_state.params
    decoder = run.trained(params).writer
    rows, width = settings.evaluation_batch_size, settings.max_prompt_length
    inputs = prompt_shapes(rows, width)
    count = rows * decoder.settings.num_samples
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), count))
    rooms = (decoder.longest(width),)
    decode = jax.jit(functools.partial(decode_batch, decoder=decoder, rooms=rooms))
    limits = jax.ShapeDtypeStruct((rows,), "int32")
    return _compile(run, decode, (params, inputs, limits, keys), memory)


def _compile(run: Run, function: Any, arguments: tuple, memory: float) -> Program:
    started = time.perf_counter()
    try:
        with use(run.mesh):
            traced = function.trace(*arguments)
            flops = product_flops(traced)
            compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if too_large := _too_large(str(error)):
            raise too_large from None
        raise
    seconds = time.perf_counter() - started
    module, usage = hlo.parse(compiled.as_text()), compiled.memory_analysis()
    devices = list(run.mesh.devices.flat)
    slices = [getattr(device, "slice_index", None) or 0 for device in devices]
    program = Program(
        arguments=usage.argument_size_in_bytes,
        results=usage.output_size_in_bytes,
        aliased=usage.alias_size_in_bytes,
        temporaries=usage.temp_size_in_bytes,
        code=usage.generated_code_size_in_bytes,
        moves=explain.moves(module),
        flops=flops / len(devices),
        exchanges=hlo.collectives(module, dict(run.mesh.shape), slices),
        seconds_to_compile=seconds,
    )
    if program.memory > memory:
        raise TooLarge(program.memory, memory)
    return program


def _too_large(message: str) -> TooLarge | None:
    """Reads what XLA says of a program that its compiler cannot fit into memory."""
    amounts = re.search(r"\(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)", message)
    if amounts is None:
        return None
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    needed, available = (float(amounts[i]) * units[amounts[i + 1]] for i in (1, 3))
    return TooLarge(needed, available)


def gib(size: float) -> str:
    """Bytes as GiB with two decimals, without the unit."""
    return f"{size / 2**30:.2f}"
