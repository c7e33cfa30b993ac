"""Runs on this machine: their shares of it, and what is shown of them."""

import os
import re
import subprocess

import pytest

from experiments.harness.executors import local
from experiments.harness.jobs import Job
from experiments.harness.sweep import Run
from transformer_jax.process import machine


def test_a_run_shows_that_it_still_runs_as_long_as_it_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(local, "_SIGN_SECONDS", 0.1)
    one = Run(config="configs/bigram_copy.py", overrides={}, labels={"seed": 0})
    job = Job(tmp_path, tmp_path, (one,))

    def follow(script):
        with (tmp_path / "log.txt").open("ab") as log:
            local._follow(subprocess.Popen(["sh", "-c", script], stdout=log), job)
        return capsys.readouterr().out

    writes = "for i in $(seq 10); do echo; sleep 0.1; done"
    assert re.match(r"running for \d+ s  \w+  seed=0\n", follow(writes))
    assert follow("sleep 0.5") == ""


@pytest.mark.parametrize(("jobs", "cores"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1)])
def test_runs_at_once_have_as_many_cores_each(monkeypatch, jobs, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 8, 9}, raising=False)
    shares = [slot.cores for slot in local.slots(jobs)]
    assert [len(share) for share in shares] == [cores] * jobs
    used = [core for share in shares for core in share]
    assert set(used) <= {3, 4, 8, 9}
    assert len(set(used)) == min(jobs * cores, 4)


@pytest.mark.parametrize(("runs", "expected"), [(0.5, 1), (2.5, 2), (99, 4)])
def test_there_are_no_more_runs_at_once_than_a_control_group_has_memory_for(
    monkeypatch, runs, expected
):
    allowed = machine.Memory(whole=runs * local._MEMORY_PER_RUN, free=0)
    monkeypatch.setattr(machine, "memory", lambda: allowed)
    monkeypatch.setattr(os, "sysconf", lambda name: 2**20)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert len(local.slots(None)) == expected


@pytest.mark.parametrize(
    ("jobs", "visible", "expected"),
    [
        (None, "", ["0", "1", "2", "3"]),
        (2, "", ["0,1", "2,3"]),
        (1, "", ["0,1,2,3"]),
        (6, "", ["0", "1", "2", "3", "0", "1"]),
        (None, "4,5,GPU-1,7", ["4", "5", "GPU-1", "7"]),
    ],
)
def test_runs_share_out_the_gpus(monkeypatch, jobs, visible, expected):
    monkeypatch.setattr(local, "_devices", lambda: ("gpu", 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    slots = local.slots(jobs)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == expected


def test_a_tpu_takes_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(local, "_devices", lambda: ("tpu", 4))
    (slot,) = local.slots(None)
    assert slot.environment == {}
