"""Runs one after the other on one Cloud TPU slice of one host, by `launch.sh tpu`."""

import signal
import subprocess

from experiments.harness.jobs import Order
from experiments.harness.sweep import ROOT
from transformer_jax.process import interrupt


def execute(order: Order) -> int:
    """Launches the whole sweep on a slice; returns the signal that ended the launcher, or 0."""
    at_once = [] if order.at_once is None else [f"--jobs={order.at_once}"]
    launch = [ROOT / "launch.sh", "tpu", *order.options, *order.elsewhere(), *at_once]

    def leave_to_launcher(number: signal.Signals) -> None:
        """Ctrl-C also comes to the launcher, which saves and deletes the slice."""
        if number != signal.SIGINT:
            interrupt.end(number)

    with interrupt.obeying(leave_to_launcher):
        status = subprocess.run(launch).returncode
    return max(status - 128, 0)
