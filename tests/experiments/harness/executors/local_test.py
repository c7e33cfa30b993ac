"""Runs on this machine: their shares of it."""

import os
from pathlib import Path

import pytest

from experiments.harness.executors import local
from experiments.harness.jobs import Job
from experiments.harness.sweep import Run, grid


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
    monkeypatch, limit, runs, expected
):
    limit(runs * local._MEMORY_PER_RUN)
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


def test_places_train_what_they_have_compiled_before_what_no_other_has():
    settings = {"model.residual": ["pre_ln", "post_ln"], "optimizer.learning_rate": [0.1, 0.2]}
    pool = local._Pool([local.Slot([0], {})] * 2, "")
    for row in grid(**settings, seed=[0, 1]):
        run = Run(config="configs/bigram_copy.py", overrides=row, labels=row)
        pool._left.append(Job(Path(), Path(run.id), (run,)))
    order = [[*pool._next(place).runs[0].labels.values()] for place in pool._places * 4]
    assert order[::2] == [["pre_ln", rate, seed] for rate in (0.1, 0.2) for seed in (0, 1)]
    assert order[1::2] == [["post_ln", rate, seed] for rate in (0.1, 0.2) for seed in (0, 1)]
