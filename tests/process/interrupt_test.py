"""A signal is obeyed at once and in one line, whatever the program is doing."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from transformer_jax.process import interrupt

# Keeps the main thread in C for many minutes. No handler of Python runs meanwhile.
BUSY = """
import hashlib, os, threading
print("not flushed", end="")
threading.Timer(0.2, os.write, (1, b"busy\\n")).start()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


def interrupted(program, number):
    """The exit status, and what a program that gets busy has printed when a signal has come."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "busy\n"
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_that_runs_no_python(number):
    program = f"from transformer_jax.process import interrupt\ninterrupt.install(){BUSY}"
    message = f"Interrupted ({number.name}). Nothing saved is lost: run the same command again.\n"
    assert interrupted(program, number) == (143, "not flushed", message)


def test_a_closed_standard_error_is_not_another_file(tmp_path):
    """Whatever is opened first would have its descriptor."""
    program = f"""
import os
os.close(2)
import sys
sys.stderr = sys.__stderr__ = None
file = open({str(tmp_path / "file")!r}, "w")
from transformer_jax.process import interrupt
interrupt.install(){BUSY}"""
    assert interrupted(program, signal.SIGTERM)[0] == 143
    assert (tmp_path / "file").read_text() == ""


def test_without_install_it_ends_what_the_main_thread_does_and_nothing_else():
    ended = interrupt.obeying(lambda number: interrupt.end(number))
    with pytest.raises(KeyboardInterrupt), ended:
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)


def test_an_action_is_called_before_the_main_thread_continues():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    outer, inner = [], []
    with interrupt.obeying(outer.append):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert outer == [signal.SIGINT, signal.SIGTERM, signal.SIGINT]
        with interrupt.obeying(inner.append, signal.SIGUSR1):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            assert inner == [signal.SIGUSR1, signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert len(outer) == 4 and len(inner) == 2
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not any(thread.name == "interrupt" for thread in threading.enumerate())
