"""Runs as tasks of Slurm job arrays: `sbatch`, `squeue` and `scontrol`, nothing else.

A task runs `experiments.run --run=ID` on a node; nodes share the checkout, the environment and the
work directories. A task that is preempted, or whose time is up, goes back into the queue, and later
continues from its last checkpoint. What is in the queue is not submitted again: the same command
continues to wait.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.jobs import Job, Order, wait
from experiments.harness.sweep import ROOT

_POLL_SECONDS = 30.0
_LONGEST_ARRAY = 1000  # what Slurm's MaxArraySize allows unless an administrator changed it
_SECONDS_TO_SAVE = 300  # before the time is up
# Options by which the queue is read back and tasks find what they run. sbatch takes beginnings too.
_OWN = {"--job-name": "-J", "--comment": "", "--array": "-a", "--chdir": "-D", "--test-only": ""}
_OWN |= {"--clusters": "-M", "--wrap": ""}
_GPUS = re.compile(r"--gres[= ]\S*gpu|gres[/:]gpu|--gpus|(?<!\S)-G")  # in options of sbatch
_TASK = """#!/bin/bash
runs=({ids})
trap : TERM # wait for the run, which saves
# A step, since Slurm tells only steps when a grace time begins. It needs to be told of the cores.
srun --ntasks=1 --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" --mpi=none \\
    {command} "--run=${{runs[SLURM_ARRAY_TASK_ID]}}"
status=$?
# Stopped by SIGTERM (preemption) or SIGUSR1 (time): where Slurm has not cancelled or requeued the
# task already, it would take this for its end.
if [[ $status == 143 || $status == 138 ]]; then
    state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
    [[ $state != RUNNING && $state != SIGNALING ]] || scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def execute(order: Order) -> int:
    """Runs the jobs as tasks; returns 0, since Ctrl-C leaves them in the queue.

    Raises:
      ValueError: as `run_all`, and where tasks would leave the GPUs unused that they ask for.
    """
    options = shlex.join(order.options)
    if os.environ.get("JAX_PLATFORMS") == "cpu" and _GPUS.search(options):
        raise ValueError(
            f"--options={options!r} asks for GPUs, but tasks get JAX_PLATFORMS=cpu from here, as "
            "launch.sh sets it on a machine without a GPU: give it --device=cuda"
        )
    command = [sys.executable, "-m", "experiments.run", str(order.folder), *order.flags]
    command.append(f"--runs_dir={order.home.parent}")
    run_all(order.jobs, command, order.home, at_once=order.at_once, options=order.options)
    return 0


def run_all(
    jobs: Sequence[Job],
    command: Sequence[str],
    home: Path,
    *,
    at_once: int | None,
    options: Sequence[str],
) -> None:
    """Submits the jobs that are not in the queue yet, and waits for all.

    command: what a task runs, without --run=ID.
    home: the folder of the work directories, which gets the tasks' output.
    options: further ones of sbatch, which win.

    Raises:
      ValueError: where there is no Slurm, it refuses, or an option is the harness's own.
    """
    for word in options:
        name = word.partition("=")[0]
        if any(
            (len(name) > 2 and long.startswith(name)) or (short and word.startswith(short))
            for long, short in _OWN.items()
        ):
            raise ValueError(
                f"--options: {word} would hide the tasks from the harness: leave it out"
            )
    if shutil.which("sbatch") is None:
        raise ValueError("found no sbatch on PATH: run this on a login node of a Slurm cluster")
    name = f"{home.name}-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"
    ids = _queued(name)
    if ids is None:
        raise ValueError("squeue does not answer: see its message above")
    new = [job for job in jobs if job.id not in ids]
    logs = home / "slurm"
    logs.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(new), _LONGEST_ARRAY):
        _submit(new[start : start + _LONGEST_ARRAY], command, name, logs, at_once, options)
    print(
        f"{len(jobs) - len(new)} runs in the queue already, {len(new)} new. Ctrl-C leaves all "
        f"there, and the same command continues. `scancel --name={name}` takes them out.",
        flush=True,
    )
    wait(jobs, lambda: _queued(name), _POLL_SECONDS, _state)
    if any(job.commands() for job in jobs):
        print(f"What tasks print in addition to their runs is in {logs}")


def _state(job: Job) -> str:
    return "not done" if job.commands() else "done"


def _submit(
    jobs: Sequence[Job],
    command: Sequence[str],
    name: str,
    logs: Path,
    at_once: int | None,
    options: Sequence[str],
) -> None:
    ids = [job.id for job in jobs]
    task = _TASK.format(ids=" ".join(ids), command=shlex.join(command))
    arguments = [
        f"--job-name={name}",
        f"--comment={' '.join(ids)}",  # from which `_queued` knows what a task's number stands for
        f"--array=0-{len(ids) - 1}{f'%{at_once}' if at_once else ''}",
        f"--chdir={ROOT}",
        f"--output={logs}/%A_%a.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=USR1@{_SECONDS_TO_SAVE}",
        *options,
    ]
    answer = subprocess.run(["sbatch", *arguments], input=task, capture_output=True, text=True)
    if answer.returncode:
        raise ValueError(f"sbatch refuses: {answer.stderr.strip()}")
    print(answer.stdout.strip(), flush=True)


def _queued(name: str) -> set[str] | None:
    """The ids of the runs in the queue, whether they wait or run; None without an answer."""
    command = ["squeue", "--me", "--noheader", "--array", f"--name={name}", "--format=%K %k"]
    # Without the user's defaults, which may leave some tasks out.
    environment = {key: text for key, text in os.environ.items() if key[:7] != "SQUEUE_"}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    if answer.returncode:
        print(answer.stderr.strip(), file=sys.stderr)
        return None
    ids = set()
    for line in answer.stdout.splitlines():
        number, *comment = line.split()
        if not number.isdecimal() or len(comment) <= int(number):
            raise ValueError(
                f"squeue shows a task of {name} that this command has not submitted, or whose "
                f"comment was changed ({line}): wait for it, or `scancel --name={name}`"
            )
        ids.add(comment[int(number)])
    return ids
