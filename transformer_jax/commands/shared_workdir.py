"""The work directory of a job: its first host alone locks it and writes into it."""

from pathlib import Path

from transformer_jax.process import hosts
from transformer_jax.runs import workdir as work


def lock(workdir: Path) -> None:
    """Keeps other jobs out of the work directory until this one ends.

    Raises:
      RuntimeError: a live process has the lock; the message names it.
      FileNotFoundError: the hosts have a folder of this name each, and not one in common.
    """
    hosts.first(lambda: work.lock(workdir))
    hosts.check_shared(workdir / work.LOCK)


def save(path: Path, text: str) -> None:
    """Replaces a file of the work directory as a whole; does nothing on other hosts."""
    if hosts.is_first():
        work.write_atomically(path, text)
