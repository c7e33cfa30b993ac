"""Waiting for what other processes do."""

import time


def wait_for(condition, process=None, seconds=900.0):
    """Waits until it holds. Fails where the process ends before, or after so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            out = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the process ended before it was interrupted\n{out}")
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.01)
