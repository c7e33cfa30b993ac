"""A process that tokenises: reads a function and then pieces, and writes what became of each.

It is a program of its own, so that it imports what it needs and nothing of the program that starts
it, and ends when that one does, however it ends.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Worker:
    """A process that calls a function, found by its name, with one thing after the other."""

    def __init__(self, function: Callable[[Any], Any]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "transformer_jax.data.prepare.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._send(function)

    def __call__(self, argument: Any) -> Any:
        """What the function returns, or raises.

        Raises:
            EOFError, BrokenPipeError: the process has ended.
        """
        self._send(argument)
        assert self._process.stdout is not None
        outcome = pickle.load(self._process.stdout)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _send(self, thing: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(thing, self._process.stdin)
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Serves one `Worker` until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed is no result
    function = pickle.load(sys.stdin.buffer)
    while True:
        try:
            argument = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            outcome = function(argument)
        except Exception as error:
            outcome = error
        pickle.dump(outcome, results)
        results.flush()


if __name__ == "__main__":
    main()
