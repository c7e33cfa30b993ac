"""What is shown of long work: a line in place on a terminal, plain lines now and then elsewhere."""

import os
import sys
import termios
import threading
import types

import pytest

from tests.processes import wait_for
from transformer_jax.process import progress


@pytest.fixture
def clock(monkeypatch):
    """A function that lets seconds pass, of which each refreshes what is shown."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 1e9)  # no thread does

    def sleep(seconds):
        for _ in range(seconds):
            now[0] += 1
            progress._under_way[-1].show()

    return sleep


@pytest.fixture
def terminal(monkeypatch):
    """Makes standard error a terminal of 60 columns; a function that returns what it was sent."""
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 60))
    monkeypatch.delenv("TERM", raising=False)
    with open(writer, "w") as stream:
        # Not that of sys, which pytest replaces before the test.
        monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))

        def sent():
            stream.write("\0")  # what was written comes in pieces; this is the last
            stream.flush()
            text = b""
            while not text.endswith(b"\0"):
                text += os.read(reader, 2**16)
            return text[:-1].decode()

        yield sent
    os.close(reader)


def test_a_log_gets_a_line_now_and_then(clock, capsys):
    with progress.phase("Reading"):
        clock(70)
    assert capsys.readouterr().err.splitlines() == [
        *(f"Reading: {seconds} s" for seconds in (5, 35, 65)),
        "Reading took 70.0 s",
    ]
    with progress.phase("Reading"):
        clock(4)
    assert not capsys.readouterr().err


def test_a_terminal_gets_a_line_that_is_written_anew(clock, terminal):
    with progress.phase("Reading"):
        clock(3)
    lines = [f"\r{text}\x1b[K" for text in ("Reading: 1 s", "Reading: 2 s", "Reading: 3 s")]
    assert terminal() == "".join(f"{line}\r" for line in lines) + "\x1b[KReading took 3.0 s\r\n"
    with progress.phase("Reading"):
        clock(1)
    assert terminal() == f"{lines[0]}\r\x1b[K"  # nothing of it is left


def test_the_innermost_is_shown(clock, capsys):
    with progress.phase("Scoring"):
        with progress.bar("Decoding", total=1000, unit="examples") as advance:
            advance(64)
            advance(64)
            clock(5)
        clock(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Decoding: 128 of 1,000 examples, ")
    assert lines[1:] == ["Scoring: 6 s", "Scoring took 6.0 s"]


def test_time_left_is_measured_from_the_first_update_on(clock, capsys):
    """What came before it, such as compiling, does not come again."""
    progress.Bar("Training", total=100, unit="steps").close()  # it never moved, and leaves nothing
    bar = progress.Bar("Training", total=111, unit="steps", done=10)
    clock(5)
    clock(20)
    bar.update(11, "loss 1.5")
    clock(10)
    bar.update(31, "loss 1.0")
    bar.close()
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "Training: 10 of 111 steps, ? left",
        "Training: 11 of 111 steps, loss 1.5, ? left",
        "Training: 31 of 111 steps, loss 1.0, 00:40 left",
    ]


def test_lines_are_refreshed_by_a_thread_that_ends(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.001)
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    with progress.phase("Reading"):
        wait_for(lambda: "Reading: 0 s\n" in capsys.readouterr().err)
    wait_for(lambda: not any(thread.name == "progress" for thread in threading.enumerate()))


def test_a_closed_standard_error_is_no_error(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with progress.phase("Reading"):
        clock(10)
