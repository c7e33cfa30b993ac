"""The protocol between `experiments.speed.measure` and a program that it times.

Each program is a process of its own: it sets up its work and does it once, then writes a line of
JSON. For each number N that it reads, it does the work N times and writes how long that took. It
ends when its input does. So the parent can let several programs take turns, and none of them holds
what another one has loaded. Standard library alone: the peers' Python runs this too.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

# Where PyTorch computes: on the GPU where JAX_PLATFORMS has this project compute there.
DEVICE = "cuda" if os.environ.get("JAX_PLATFORMS", "").startswith("cuda") else "cpu"


def start() -> tuple[dict[str, Any], TextIO]:
    """What to do, from the command line, and where answers go: whatever is printed goes elsewhere.

    The keys are: config (the run's, as nested dicts), config_file, work, arguments, and workdir, an
    own empty folder.
    """
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    return spec | {"config": json.loads(Path(spec["config_file"]).read_text("utf-8"))}, answers


def serve(
    answers: TextIO,
    work: Callable[[], Mapping[str, float] | None],
    version: str,
    device_peak: Callable[[], int] | None = None,
) -> None:
    """Does the work once, then as often as it is asked to, until there is nothing more to read.

    version: of what does the work, as tables show it.
    work: returns numbers that add up over calls ("tokens"), or None. Nothing that it started is
      still running when it returns.
    device_peak: the most memory of the GPU that was in use, which counts in place of the process's.
    """
    peak_bytes = device_peak if device_peak and DEVICE == "cuda" else _peak_bytes
    first = dict(work() or {})
    _answer(answers, {**first, "peak_bytes": peak_bytes(), "version": version})
    _forget_peak()
    for line in sys.stdin:
        sums: dict[str, float] = {}
        started = time.perf_counter()
        for _ in range(int(line)):
            for name, value in (work() or {}).items():
                sums[name] = sums.get(name, 0.0) + value
        seconds = time.perf_counter() - started
        _answer(answers, {**sums, "seconds": seconds, "peak_bytes": peak_bytes()})


def _answer(answers: TextIO, values: Mapping[str, float | str]) -> None:
    print(json.dumps(values), file=answers, flush=True)


def _peak_bytes() -> int:
    """The most memory that the process has held, since `_forget_peak` where Linux allows that."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """So that the peak of the work is not that of loading and compiling."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then it includes them
