"""Where runs go. An executor is a file here, and a row of `EXECUTORS`."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # it loads libraries, which take seconds
    from experiments.harness.jobs import Order


class Executor(NamedTuple):
    """One row.

    Attributes:
      execute: runs the jobs of an order and returns once they have ended, with the number of the
        signal that stopped them all, or 0. Which of them are done, their work directories say.
      reads: the flags that it reads in addition to those that all read. One that reads "bucket"
        keeps the work directories there: `bucket.fetch` copies them before and after.
    """

    execute: "Callable[[Order], int]"
    reads: tuple[str, ...]


def _of(name: str) -> "Callable[[Order], int]":
    """The `execute` of a file here, which is imported once it is called."""

    def execute(order: "Order") -> int:
        return importlib.import_module(f"{__name__}.{name}").execute(order)

    return execute


EXECUTORS = {
    "local": Executor(_of("local"), ("jobs",)),
    "slurm": Executor(_of("slurm"), ("jobs", "options")),
    "tpu": Executor(_of("tpu"), ("jobs", "options", "bucket")),
    "skypilot": Executor(_of("skypilot"), ("options", "bucket")),
}
