"""Processes that wait to do their work, and how they take turns."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Worker:
    """A program of `programs/` in a process of its own; the protocol is that of `worker.py`."""

    def __init__(
        self,
        command: Sequence[str],
        spec: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path,
    ):
        """Starts it and waits until it has done its work once, which `first` tells of."""
        self._log = log
        started = time.perf_counter()
        with log.open("a", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [*command, json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        self.first = {**self._answer(), "seconds": time.perf_counter() - started}

    def __call__(self, calls: int) -> Row:
        """Does the work so many times; seconds for all of them, and what else it tells."""
        assert self._process.stdin is not None
        print(calls, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _answer(self) -> Row:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            end = "\n".join(self._log.read_text("utf-8", errors="replace").splitlines()[-20:])
            raise RuntimeError(f"{self._log.name} ended with status {status}:\n{end}")
        return json.loads(line)


def in_turn(works: Mapping[str, Callable[[], Row]], rounds: int) -> list[Row]:
    """Each work once a round, so that other load of the machine falls on all alike.

    Every round begins with another work: what one leaves behind in caches is not always found by
    the same next one. Returns rows {"program", "round", what the work tells}.
    """
    names = list(works)
    rows = []
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            rows.append({"program": name, "round": number, **works[name]()})
    return rows
