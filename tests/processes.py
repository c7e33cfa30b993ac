"""Other processes: programs on devices that this one lacks, and waiting for what they do."""

import os
import socket
import subprocess
import sys
import time
from typing import Any

from transformer_jax.process import hosts


def printed(*command: str, **settings: Any) -> str:
    """What a process prints, which has to end in order; settings: as of `subprocess.run`."""
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_eight_devices(*arguments: str) -> str:
    """What Python prints with these arguments where the CPU is eight devices."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    return printed(sys.executable, *arguments, env=os.environ | devices)


def host_settings(count: int) -> list[dict[str, str]]:
    """What the environment of each of so many processes holds that work as one."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    names = hosts.COORDINATOR, hosts.PROCESSES, hosts.PROCESS
    rows = [(f"localhost:{port}", str(count), str(index)) for index in range(count)]
    return [dict(zip(names, row, strict=True)) if count > 1 else {} for row in rows]


def wait_for(condition, process=None, seconds=900.0):
    """Waits until it holds. Fails where the process ends before, or after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            out = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the process ended before it was interrupted\n{out}")
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)
