"""Runs one after the other on one Cloud TPU slice of one host, by `launch.sh tpu`."""

import signal
import subprocess

from experiments.harness.jobs import Order
from experiments.harness.sweep import ROOT


def execute(order: Order) -> int:
    """Launches the whole sweep on a slice; returns the signal that ended the launcher, or 0."""
    at_once = [] if order.at_once is None else [f"--jobs={order.at_once}"]
    launch = [ROOT / "launch.sh", "tpu", *order.options, *order.elsewhere(), *at_once]
    # Ctrl-C is for the launcher, which saves and deletes the slice. By default `subprocess.run`
    # kills it then; SIG_IGN, unlike a function, would be inherited by it.
    previous = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        status = subprocess.run(launch).returncode
    finally:
        signal.signal(signal.SIGINT, previous)
    return max(status - 128, 0)
