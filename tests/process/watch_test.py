"""Processes of one job, with no device at work: they agree, stop, and none outlives another."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.processes import host_settings, wait_for
from transformer_jax.process import interrupt, watch

# What a process does: the moment at which it ends is told by its first argument.
PROGRAM = """
import os, signal, sys, threading, time
from transformer_jax.process import hosts, watch

hosts.LONELY_SECONDS, watch.BEAT_SECONDS, watch.GONE_SECONDS = 2, 0.5, 10
case, process = sys.argv[1], int(os.environ[hosts.PROCESS])
first, last = process == 0, process == int(os.environ[hosts.PROCESSES]) - 1
if case == "alone" and not first:
    sys.exit()
watch.start()
hosts.gather("started", "")  # none ends before that
if case == "agree":
    for turn in range(3):
        print(hosts.gather("a", f"{turn}{hosts.index()}"), hosts.gather("b", "x"), file=sys.stderr)
    print(hosts.first(lambda: {"who": hosts.index()}), file=sys.stderr)
    with watch.stop_at_signal(str) as stop:
        step = 1
        while not stop():
            if step == 20 and not first:
                os.kill(os.getpid(), signal.SIGINT)
            step += 1
            time.sleep(0.02 + 0.02 * first)
    assert stop()
    print("stopped after", step, file=sys.stderr)
    print("the first alone prints", flush=True)
    watch.finish()
    time.sleep(first)  # so that the other need not do without it
    os.kill(os.getpid(), signal.SIGTERM)  # which ends it again
    sys.exit()
if case == "first killed" and first:
    os.kill(os.getpid(), signal.SIGKILL)
if case == "second killed" and not first:
    os.kill(os.getpid(), signal.SIGTERM)  # to which nobody listens
if case == "failed" and last:
    watch.fail(ValueError("no such file\\nand more"))
if case == "aborted" and not first:
    os.abort()
threading.Event().wait()
"""


# How many processes each case has
CASES = {"agree": 2, "alone": 2, "first killed": 2, "second killed": 2, "failed": 3, "aborted": 2}


@pytest.fixture
def started(tmp_path):
    """(case, number) -> a process whose output is the file CASE.NUMBER; all cases run at once."""
    processes = {}
    for case, count in CASES.items():
        for number, environment in enumerate(host_settings(count)):
            command, settings = [sys.executable, "-c", PROGRAM, case], os.environ | environment
            with (tmp_path / f"{case}.{number}").open("w") as output:
                process = subprocess.Popen(command, env=settings, stdout=output, stderr=output)
            processes[case, number] = process
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.mark.long
def test_hosts_agree_and_none_outlives_another(tmp_path, started):
    name = socket.gethostname()

    def output(case, process):
        return (tmp_path / f"{case}.{process}").read_text()

    def ended(case, process):
        return started[case, process].wait(timeout=120), output(case, process)

    (status, text), (other_status, other) = (ended("agree", process) for process in range(2))
    assert status == other_status == -signal.SIGTERM
    for turn in range(3):
        assert f"['{turn}0', '{turn}1'] ['x', 'x']" in text and text.count(f"'{turn}0'") == 1
    (stopped,) = [line for line in text.splitlines() if line.startswith("stopped after")]
    assert int(stopped.split()[-1]) > 20
    for expected in (stopped, "{'who': 0}"):
        assert expected in text and expected in other
    assert "the first alone prints" in text and "the first alone prints" not in other

    message = "error: host {} ({}) of 2 is gone; run the same command on all hosts again"
    for case, dead in (("first killed", 0), ("second killed", 1)):
        status, text = ended(case, 1 - dead)
        assert status == 1
        assert message.format(dead, name) in text
        assert f"host {1 - dead} ({name}) ends too" in text
    assert ended("failed", 2)[0] == 1
    for process in range(2):
        status, text = ended("failed", process)
        assert status == 1 and f"error: host 2 ({name}) of 3 has failed: no such file\n" in text
    lonely = f"host 0 ({name}) has waited 2 s for the other hosts of this job to come to"
    wait_for(lambda: lonely in output("alone", 0), started["alone", 0])
    status, text = ended("aborted", 1)
    assert status == 1 and f"error: host 1 ({name}) was aborted" in text
    # It is told, and need not miss beats for GONE_SECONDS more.
    status, text = ended("aborted", 0)
    assert status == 1 and f"error: host 1 ({name}) of 2 has failed: it was aborted" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_of_a_kind_asks_to_stop_and_the_next_ends_at_once(number, monkeypatch, capfd):
    ended = []
    monkeypatch.setattr(interrupt, "end", ended.append)
    before = signal.getsignal(number)
    with watch.stop_at_signal(lambda: "the step is saved.") as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop() and stop()
        assert capfd.readouterr().err == f"Stopping ({number.name}): the step is saved.\n"
        for other in {signal.SIGTERM, signal.SIGINT} - {number}:
            signal.raise_signal(other)  # of the other kind it is the first
        assert not ended and not capfd.readouterr().err
        signal.raise_signal(number)
        assert ended == [number]
    assert signal.getsignal(number) == before
    with watch.stop_at_signal(str):  # before anything can be saved, as in the first compilation
        signal.raise_signal(number)
        assert ended == [number, number]
