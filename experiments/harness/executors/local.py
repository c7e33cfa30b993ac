"""Runs on this machine: processes, each on its own share of the cores and GPUs.

Runs that are only trained share a process (`harness.train`), one after the other, where `Job` says
that they may; what else there is to do has a process of its own.
"""

import contextlib
import datetime
import fcntl
import functools
import json
import os
import platform
import queue
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Literal, NamedTuple, TypeVar

from experiments.harness.jobs import Job, Order
from experiments.harness.sweep import ROOT
from transformer_jax.process import interrupt, machine
from transformer_jax.runs.workdir import LOCK, write_atomically

_SIGN_SECONDS = 300.0  # between the lines that say that a run is still running
_LOOK_SECONDS = 1.0  # between two looks at a lock
_MEMORY_PER_RUN = 2 << 30  # bytes: what a process of the larger CPU sweeps takes, with room
# Tells a run to save and end. Not SIGTERM: some clusters' Slurm sends that to every process of a
# task as well, and the second signal of a kind ends a run without saving.
_STOP = signal.SIGINT

T = TypeVar("T")


class Ended(NamedTuple):
    """How a job ended. stopped: by a signal to this process; a rerun continues."""

    job: Job
    status: Literal["done", "failed", "stopped"]
    seconds: float


class Slot(NamedTuple):
    """The place of one run at a time: cores, and GPUs by environment variable."""

    cores: list[int]
    environment: dict[str, str]


def execute(order: Order) -> int:
    """Runs the jobs; returns the signal that stopped them all, or 0."""
    places = slots(order.at_once)
    each = f"{len(places[0].cores)} core{'s' * (len(places[0].cores) != 1)}"
    print(f"{len(places)} at once, {each} each", flush=True)
    pool = _Pool(places, f"{_processor()}, {each} a run")
    with pool.stopped_by_signals() as signals:
        for count, ended in enumerate(pool.run(order.jobs), start=1):
            took = f"{ended.status} after {ended.seconds:.0f} s"
            print(f"[{count}/{len(order.jobs)}] {took}  {ended.job}", flush=True)
        return signals[0] if signals else 0


def slots(at_once: int | None) -> list[Slot]:
    """The places of so many runs at once, each with the same number of cores and GPUs.

    None: one for each GPU, one where there is a TPU, else what cores and memory allow.
    The shares do not depend on how many runs are left: on more cores XLA's sums round otherwise.
    """
    cores = list(range(os.cpu_count() or 1))
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    backend, count = _devices()
    if at_once is None:
        # `machine` knows what a control group allows, but counts swap, which is too slow for runs.
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        runs = min(installed, machine.memory().whole) // _MEMORY_PER_RUN
        fit = {"cpu": min(len(cores), int(runs)), "gpu": count}
        at_once = fit.get(backend, 1)
    at_once = max(1, at_once)
    cores = _shares(cores, at_once)
    if backend != "gpu":
        return [Slot(share, {}) for share in cores]
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = _shares(named.split(",") if named else list(map(str, range(count))), at_once)
    return [
        Slot(share, {"CUDA_VISIBLE_DEVICES": ",".join(ids)})
        for share, ids in zip(cores, gpus, strict=True)
    ]


def _shares(things: Sequence[T], count: int) -> list[list[T]]:
    """So many shares of the same size; where there are fewer things, several shares have one."""
    each = max(1, len(things) // count)
    return [[things[(i * each + k) % len(things)] for k in range(each)] for i in range(count)]


def _devices() -> tuple[str, int]:
    """JAX's backend ("cpu", "gpu", "tpu") and the number of its devices.

    Another process asks JAX, since the one that asks takes the devices' memory until it ends.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return "cpu", 1
    code = "import jax; print(jax.default_backend(), jax.local_device_count())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if answer.returncode:
        raise ValueError(f"JAX finds no device: {answer.stderr.strip().splitlines()[-1]}")
    backend, count = answer.stdout.split()
    return backend, int(count)


class _Place:
    """A slot and what is there: the last job, and the process that trains (see `harness.train`)."""

    def __init__(self, slot: Slot):
        self.slot = slot
        self.job: Job | None = None
        self.trainer: subprocess.Popen | None = None
        self.trains: tuple[str, str] | None = None  # see `Job.process`


class _Pool:
    """Processes, as many at once as there are slots."""

    def __init__(self, places: Sequence[Slot], machine: str):
        self._places = [_Place(slot) for slot in places]
        self._free: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        for place in self._places:
            self._free.put(place)
        self._left: list[Job] = []
        self._picking = threading.Lock()
        self._machine = machine
        self._processes: set[subprocess.Popen] = set()
        self._stopping = threading.Event()

    def run(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        """Yields how each job went, as they end."""
        self._left[:] = jobs
        with ThreadPoolExecutor(len(self._places)) as threads:
            for future in as_completed([threads.submit(self._perform) for _ in jobs]):
                yield future.result()
        for place in self._places:
            self._end_trainer(place)

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[list[int]]:
        """Passes a stop on, and starts nothing afterwards; yields the signals that have come.

        SIGUSR1 is what Slurm sends before the time is up.
        """
        came: list[int] = []

        def stop(number: signal.Signals) -> None:
            came.append(number)
            self._stopping.set()
            if len(came) == 1:
                text = "Stopping: training runs save where they are. Ctrl-C ends them at once."
                print(text, file=sys.stderr)  # not stdout, which may be in the middle of a line
            elif number != signal.SIGINT:
                return  # Slurm says it more than once
            for process in list(self._processes):
                process.send_signal(_STOP if len(came) == 1 else signal.SIGKILL)

        with interrupt.obeying(stop, signal.SIGUSR1):
            yield came

    def _perform(self) -> Ended:
        place, started = self._free.get(), time.monotonic()
        job = self._next(place)
        try:
            self._wait_for_others(job)
            commands, before = job.commands(), []
            # A command that leaves as much to do as there was has failed.
            while commands and commands != before and not self._stopping.is_set():
                self._call(job, commands[0], place)
                commands, before = job.commands(), commands
        finally:
            self._free.put(place)
        unfinished = "stopped" if self._stopping.is_set() else "failed"
        return Ended(job, unfinished if commands else "done", time.monotonic() - started)

    def _next(self, place: _Place) -> Job:
        """The first that is left of those whose programs this place has, or else no other place.

        Two places that begin with the same program would both compile it.
        """
        with self._picking:
            programs = place.job.programs if place.job else ()
            others = {name for each in self._places if each.job for name in each.job.programs}

            def cost(job: Job) -> list[bool]:
                unlike = [name not in programs for name in job.programs]
                return [*unlike, *(name in others for name in job.programs)]

            place.job = min(self._left, key=cost)
            self._left.remove(place.job)
            return place.job

    def _wait_for_others(self, job: Job) -> None:
        """Waits while another process is at this job, as one whose sweep was killed may be."""
        last_holder = ""
        while (holder := _holder(job.workdir)) and not self._stopping.is_set():
            if holder != last_holder:
                print(f"in use by {holder}, which is waited for  {job}", flush=True)
            last_holder = holder
            self._stopping.wait(_LOOK_SECONDS)

    def _call(self, job: Job, command: list[str], place: _Place) -> None:
        job.workdir.mkdir(parents=True, exist_ok=True)
        _write_record(job, self._machine)
        with (job.workdir / "log.txt").open("a", encoding="utf-8") as log:
            print("$", shlex.join(command), file=log, flush=True)
            if job.process is not None:
                self._train(job, command, place, log)
                return
            self._end_trainer(place)
            process = self._start(command, place.slot, log)
            _follow(functools.partial(_has_ended, process), job)
            self._processes.discard(process)

    def _train(self, job: Job, command: list[str], place: _Place, log: IO[str]) -> None:
        """Has the place's process train a run; starts one where there is none for such runs."""
        python, flag, _, *words = command
        trainer = place.trainer
        if trainer is None or place.trains != job.process or trainer.poll() is not None:
            self._end_trainer(place)
            command = [python, flag, "experiments.harness.train"]
            trainer = self._start(command, place.slot, log, subprocess.PIPE)
            place.trainer, place.trains = trainer, job.process
        assert trainer.stdin is not None and trainer.stdout is not None
        order = json.dumps({"words": words, "workdir": str(job.workdir)})
        with contextlib.suppress(BrokenPipeError):  # it has just been stopped
            trainer.stdin.write(f"{order}\n".encode())
            trainer.stdin.flush()
        answers = trainer.stdout
        _follow(lambda seconds: bool(select.select([answers], [], [], seconds)[0]), job)
        if not answers.readline():
            self._end_trainer(place)

    def _end_trainer(self, place: _Place) -> None:
        """Ends the place's process for training, which trains nothing now, where there is one."""
        if place.trainer is not None:
            place.trainer.communicate()
            self._processes.discard(place.trainer)
            place.trainer = None

    def _start(
        self, command: list[str], slot: Slot, log: IO[str], pipe: int | None = None
    ) -> subprocess.Popen:
        """Starts a process on its share of the machine, which writes into a log.

        pipe: subprocess.PIPE, to be asked and to answer.
        """
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **slot.environment},
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or log,
            stderr=log,
            start_new_session=True,  # Ctrl-C comes through `stop`, and not twice
        )
        # XLA starts as many threads as it sees cores, later than this.
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, slot.cores)
        self._processes.add(process)
        if self._stopping.is_set():
            process.send_signal(_STOP)  # `stop` has come before the process was in the set
        return process


def _holder(workdir: Path) -> str:
    """The process that holds the lock of a work directory, by its own words; "" where none does."""
    with contextlib.suppress(FileNotFoundError), (workdir / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(1000).decode("utf-8", "replace") or "another process"
    return ""


def _follow(has_ended: Callable[[float], bool], job: Job) -> None:
    """Waits for the end of a run. Says now and then that it runs, as long as it fills its log.

    `launch.sh tpu` takes a sweep without output for one that hangs.

    has_ended: whether it has, once it has or after so many seconds.
    """
    log = job.workdir / "log.txt"
    started, size = time.monotonic(), log.stat().st_size
    while not has_ended(_SIGN_SECONDS):
        before, size = size, log.stat().st_size
        if size > before:
            print(f"running for {time.monotonic() - started:.0f} s  {job}", flush=True)


def _has_ended(process: subprocess.Popen, seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def _write_record(job: Job, machine: str) -> None:
    """Writes run.json: what is run, for `measure` and people; on what machine, for `results`."""
    run = job.runs[0]
    record = {
        "labels": [dict(run.labels) for run in job.runs],
        "config": run.config,
        "overrides": dict(run.overrides),
        "train": run.train,
        "measure": run.measure,
        "machine": machine,
        "date": datetime.date.today().isoformat(),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    write_atomically(job.workdir / "run.json", text + "\n")


def _processor() -> str:
    """The name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())
