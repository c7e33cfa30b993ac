"""Where runs go. An executor is a file here, and a row of `EXECUTORS`."""

from collections.abc import Callable
from typing import NamedTuple

from experiments.harness.executors import local, skypilot, slurm, tpu
from experiments.harness.jobs import Order


class Executor(NamedTuple):
    """One row.

    Attributes:
      execute: runs the jobs of an order and returns once they have ended, with the number of the
        signal that stopped them all, or 0. Which of them are done, their work directories say.
      reads: the flags that it reads in addition to those that all read. One that reads "bucket"
        keeps the work directories there: `bucket.fetch` copies them before and after.
    """

    execute: Callable[[Order], int]
    reads: tuple[str, ...]


EXECUTORS = {
    "local": Executor(local.execute, ("jobs",)),
    "slurm": Executor(slurm.execute, ("jobs", "options")),
    "tpu": Executor(tpu.execute, ("jobs", "options", "bucket")),
    "skypilot": Executor(skypilot.execute, ("options", "bucket")),
}
