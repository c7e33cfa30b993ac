"""The process that trains runs one after the other: libraries and programs are loaded once.

    python -m experiments.harness.train

Each line of its standard input is a run in JSON: "words", of the command line that trains it, and
"workdir". What the run prints goes into its log.txt, and its exit status is a line of standard
output. The process ends with its input, or after a run that a signal has ended.

Each run leaves its flags, its lock, filters of warnings and memory behind, which are given back.
JAX's settings and rows of one's own stay, so that only runs come here that agree in them.
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    from transformer_jax.process import interrupt, machine

    interrupt.install()
    machine.keep_freed_memory()

import contextlib
import gc
import json
import os
import sys
import warnings
from pathlib import Path

from transformer_jax import main
from transformer_jax.process import interrupt, machine, watch
from transformer_jax.runs import workdir as work


def serve() -> int:
    """Trains the runs of standard input; returns the exit status of the process."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    _redirect(Path(os.devnull), 0, os.O_RDONLY)
    main.log_plainly()
    try:
        watch.start()
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    gc.freeze()
    for line in requests:
        run = json.loads(line)
        status = _train(run["words"], Path(run["workdir"]))
        with contextlib.suppress(BrokenPipeError):  # the sweep was killed, and asks no more
            print(status, file=answers, flush=True)
        if status == interrupt.EXIT_STATUS:
            return status
    return 0


def _train(words: list[str], workdir: Path) -> int:
    """Does what a process with these words does; returns what its exit status would be."""
    for descriptor in (1, 2):
        _redirect(workdir / "log.txt", descriptor, os.O_WRONLY | os.O_APPEND)
    sys.argv[:] = [main.__file__, *words]
    work.claim(workdir)
    try:
        with warnings.catch_warnings():  # so that each run is told of what it does
            status = main.call(sys.argv)
    finally:
        work.unlock(workdir)
    _flush()
    for descriptor in (1, 2):
        _redirect(Path(os.devnull), descriptor, os.O_WRONLY)
    _flush()  # what a full disk did not take
    gc.collect()
    machine.give_back_freed_memory()
    return status


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def _redirect(path: Path, descriptor: int, how: int) -> None:
    """Has a descriptor lead to a file."""
    file = os.open(path, how)
    os.dup2(file, descriptor)
    os.close(file)


if __name__ == "__main__":
    sys.exit(serve())
