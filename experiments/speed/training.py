"""One training run through the command line, watched: does it get slower, does it take more?"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.speed.workers import Row
from transformer_jax.runs.workdir import read_metrics

_SECONDS = 0.2  # between two looks


def watch(config_file: Path) -> list[Row]:
    """A row for each line of the run's log: its step, seconds so far, and memory held then.

    Raises:
      RuntimeError: the run fails.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as workdir:
        command = [sys.executable, "-m", "transformer_jax.main"]
        command += [f"--config={config_file}", f"--workdir={workdir}"]
        process = subprocess.Popen(command)  # what it prints goes into this run's log
        while process.poll() is None:
            time.sleep(_SECONDS)
            memory = _held_bytes(process.pid)
            for record in list(read_metrics(workdir))[len(rows) :]:
                seconds = record.get("time/seconds")
                rows.append({"step": record["step"], "seconds": seconds, "held_bytes": memory})
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return rows


def _held_bytes(process: int) -> int | None:
    """The memory that a process holds; None once it has ended, or where there is no /proc."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) * 1024 if lines else None
