"""Other processes: programs on devices that this one lacks, and waiting for what they do."""

import os
import subprocess
import sys
import time


def on_eight_devices(*arguments: str) -> str:
    """What Python prints with these arguments where the CPU is eight devices."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | devices, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(condition, process=None, seconds=900.0):
    """Waits until it holds. Fails where the process ends before, or after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            out = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the process ended before it was interrupted\n{out}")
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)
