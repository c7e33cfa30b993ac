"""Memory of devices: how much there is, and which programs and arrays are refused for it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jax.core import Tracer
from jax.sharding import Mesh

from transformer_jax.process import machine


class Need(NamedTuple):
    """Bytes that one thing takes on all devices together, and the settings to lower for it."""

    name: str
    size: float
    settings: str


class Place(NamedTuple):
    """Memory that programs share, in bytes. share: how much of what all devices take lies in it."""

    name: str
    whole: float
    free: float
    share: float

    def needed(self, needs: Sequence[Need]) -> float:
        """The bytes of these that lie here."""
        return self.share * sum(need.size for need in needs)

    def refusal(self, what: str, needs: Sequence[Need]) -> str | None:
        """Says that there is less memory than `what` needs; None where there is enough."""
        needed = self.needed(needs)
        if needed <= self.whole:
            return None
        part = max(needs, key=lambda need: need.size)
        return (
            f"{what} needs at least {machine.size(needed)} of memory, and {self.name} has "
            f"{machine.size(self.whole)}. Largest part: {part.name}, "
            f"{machine.size(self.share * part.size)}. Lower {part.settings}"
        )


def place(mesh: Mesh) -> Place | None:
    """Where the devices of this process have their memory; None where nobody says how much."""
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        whole, free = machine.memory()
        return Place("this machine", whole, free, len(mesh.local_devices) / mesh.size)
    statistics = device.memory_stats() or {}
    if "bytes_limit" not in statistics:
        return None
    whole = statistics["bytes_limit"]
    name = f"each device ({device.device_kind})"
    return Place(name, whole, whole - statistics.get("bytes_in_use", 0), 1 / mesh.size)


def check_program(what: str, compiled: Any, settings: str, *, in_memory: bool) -> None:
    """Warns where a program for the mesh in use needs more memory than is free.

    Args:
      what: what it does.
      settings: those to lower.
      in_memory: whether its arguments are in memory already.

    Raises:
      ValueError: it needs more than there is.
    """
    mesh = jax.sharding.get_mesh()
    if mesh.empty or (where := place(mesh)) is None:
        return
    used = compiled.memory_analysis()
    extra = used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    needs = [
        Need("arguments", mesh.size * used.argument_size_in_bytes, settings),
        Need("what is computed", mesh.size * extra, settings),
    ]
    if message := where.refusal(what, needs):
        raise ValueError(message)
    if (needed := where.needed(needs[in_memory:])) > where.free:
        logging.warning(
            "%s probably needs %s of memory, and %s has %s free, so it may be killed. Lower %s",
            what,
            machine.size(needed),
            where.name,
            machine.size(where.free),
            settings,
        )


def checked(function: Any, what: str, settings: str) -> Callable[..., Any]:
    """A jitted function each of whose programs `check_program` sees before it runs.

    The first argument of a call is held. Which program runs depends on the others and on options.
    """
    programs: set[Any] = set()

    def call(first: Any, *arguments: Any, **options: Any) -> Any:
        leaves = jax.tree.leaves(arguments)
        program = (*map(np.shape, leaves), *options.items())
        if program not in programs and not any(isinstance(x, Tracer) for x in leaves):
            compiled = function.lower(first, *arguments, **options).compile()
            check_program(what, compiled, settings, in_memory=True)
            programs.add(program)
        return function(first, *arguments, **options)

    return call
