"""Runs an experiment and writes its report. The same command goes on after any interruption.

    python -m experiments.run FOLDER [--sweep=NAME] [--quick] [--dry_run] [--jobs=N]
        [--data_dir=DIR] [--runs_dir=runs/experiments]

Every run has the work directory RUNS_DIR/FOLDER/ID, with the end of its story in log.txt. What is
finished is not run again, what was interrupted is resumed, and what failed is tried again. Once all
runs are there, csv, figures and summary.json go into FOLDER/results, and the table into its README;
with --quick into RUNS_DIR/FOLDER/quick.
"""

import argparse
import contextlib
import dataclasses
import datetime
import inspect
import json
import os
import platform
import queue
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Literal, NamedTuple

from experiments import results
from experiments.sweep import ROOT, Run, part
from transformer_jax import build, overrides, run_log
from transformer_jax.data import tokenizer

_MEMORY_PER_RUN = 2 << 30  # bytes: what a process of the larger CPU sweeps takes, with room
_LOG_LINES = 15  # of a failed run's log, that are shown


@dataclasses.dataclass(frozen=True)
class Job:
    """All runs of a sweep that have one content: one work directory, several sets of labels."""

    folder: Path
    workdir: Path
    runs: tuple[Run, ...]

    def __str__(self) -> str:
        return f"{self.workdir.name}  {' | '.join(map(str, self.runs))}"

    def commands(self) -> list[list[str]]:
        """What is left to do: to train, to measure, both, or nothing."""
        run, workdir = self.runs[0], f"--workdir={self.workdir}"
        python = [sys.executable, "-m"]
        train = [*python, "transformer_jax.main", f"--config={ROOT / run.config}", workdir]
        train += [f"--config.{key}={value}" for key, value in run.overrides.items()]
        measure = [*python, "experiments.measure", f"--folder={self.folder}", workdir]
        left = []
        if run.train and not results.is_trained(run, self.workdir):
            left.append(train)
        if run.measure is not None and (left or not results.is_measured(self.workdir)):
            left.append(measure)
        return left


class Ended(NamedTuple):
    """How it went with a job. `stopped`: by a signal to this process; the rerun goes on."""

    job: Job
    status: Literal["done", "failed", "stopped"]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 0 once the report is written."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run", description="Runs an experiment and writes its report."
    )
    parser.add_argument("folder", help="its name, or the path of a folder elsewhere")
    parser.add_argument("--sweep", help="name in its sweep.py (default: the first)")
    parser.add_argument("--quick", action="store_true", help="the small version of the sweep")
    parser.add_argument("--dry_run", action="store_true", help="only show what would be run")
    parser.add_argument("--jobs", type=int, help="runs at once (default: what fits the machine)")
    parser.add_argument("--data_dir", type=Path, help="sets data.dir, for sweeps that need data")
    parser.add_argument("--runs_dir", type=Path, default=Path("runs/experiments"))
    try:
        return _main(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(arguments: argparse.Namespace) -> int:
    folder = _find(arguments.folder)
    sweeps = part(folder, "sweep").SWEEPS
    name = arguments.sweep or next(iter(sweeps))
    if name not in sweeps:
        raise ValueError(f"{folder.name} has no sweep {name!r}, but {', '.join(sweeps)}")
    runs = sweeps[name](arguments.quick)
    if arguments.data_dir is not None:
        place = {"data.dir": str(arguments.data_dir.expanduser().resolve())}
        runs = [dataclasses.replace(run, overrides={**run.overrides, **place}) for run in runs]
    home = arguments.runs_dir.expanduser().resolve() / folder.name
    jobs = plan(runs, folder, home)
    report = part(folder, "report").report  # before hours have gone into what it reports on
    base = home / "quick" if arguments.quick else folder
    if arguments.quick:
        base.mkdir(parents=True, exist_ok=True)
        (base / "README.md").write_text("\n".join(results.markers(name)) + "\n", "utf-8")
    results.check_markers(base / "README.md", name)

    left = [job for job in jobs if job.commands()]
    new = [job for job in left if not job.workdir.exists()]
    print(
        f"{folder.name}, sweep {name}: {len(jobs) - len(left)} of {len(jobs)} "
        f"run{'s' * (len(jobs) != 1)} done, {len(left) - len(new)} begun, {len(new)} new",
        flush=True,
    )
    if arguments.dry_run:
        for job in jobs:
            state = "new" if job in new else "begun" if job in left else "done"
            print(f"  {state:6}{job}")
        return 0

    failed: list[Job] = []
    if left:
        failed, signalled = _run_all(left, _shares(arguments.jobs))
        if signalled:
            print("Stopped. The same command goes on from here.")
            return 128 + signalled
    for job in failed:
        print(f"\nfailed: {job}\n{_end_of_log(job)}\n  {job.workdir / 'log.txt'}")
    if failed:
        print(f"\n{len(failed)} of {len(jobs)} runs are missing, so there is no report:")
        print(*(f"  {job}" for job in failed), sep="\n")
        return 1

    out = base / "results"
    out.mkdir(exist_ok=True)
    finished = [results.load(run, home / run.id) for run in runs]
    text = f"{report(finished, out).strip()}\n\n{results.provenance(finished)}"
    results.insert(base / "README.md", name, text)
    print(f"\n{text}\n\nThe report is in {base / 'README.md'}, its files in {out}")
    return 0


def plan(runs: Sequence[Run], folder: Path, home: Path) -> list[Job]:
    """The jobs of a sweep, every one checked: before any of them starts.

    Raises:
      ValueError, FileNotFoundError: for a run that could not be run, naming it.
    """
    if not runs:
        raise ValueError(f"the sweep of {folder} is empty")
    same: dict[str, list[Run]] = {}
    for run in runs:
        same.setdefault(run.id, []).append(run)
    for first, *others in same.values():
        for other in others:
            if difference := overrides.difference(first.resolved, other.resolved):
                raise ValueError(
                    f"the runs {first} and {other} would share a work directory, but differ in "
                    f"{'; '.join(difference)}: that is no part of what a run is"
                )
        check(first, folder)
    return [Job(folder, home / id, tuple(same[id])) for id in same]


def check(run: Run, folder: Path) -> build.Run:
    """Builds what the config describes, without data, and fits the arguments to `measure`.

    Where the vocabulary comes from the data, a stand-in takes its place.

    Raises:
      ValueError, FileNotFoundError: naming the run.
    """
    with tempfile.TemporaryDirectory() as stand_ins:
        workdir = Path(stand_ins)
        tokenizer.train_tokenizer("bytes", (), 0, mask=True).save(workdir / "tokenizer.json")
        run_log.write_atomically(workdir / "labels.json", json.dumps(["a", "b"]))
        try:
            built = build.build(run.resolved, workdir)
            if run.measure is not None:
                measure: Callable = part(folder, "measure").measure
                inspect.signature(measure).bind(run.resolved, workdir, **run.measure)
        except (ValueError, FileNotFoundError, TypeError) as error:
            raise ValueError(f"the run {run}: {error}") from error
    return built


def _find(name: str) -> Path:
    """The folder of an experiment of this repository, or any other."""
    for folder in (ROOT / "experiments" / name, Path(name).expanduser().resolve()):
        if (folder / "sweep.py").exists():
            return folder
    found = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/sweep.py"))
    raise FileNotFoundError(f"there is no experiment {name!r}, but {', '.join(found) or 'none'}")


def _shares(jobs: int | None) -> list[list[int]]:
    """The cores of each of so many runs at once: the same number for each.

    They do not depend on how many runs are left, as XLA's sums round otherwise on more cores.
    """
    cores = list(range(os.cpu_count() or 1))
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    if jobs is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        jobs = 1 if _on_accelerator() else min(len(cores), memory // _MEMORY_PER_RUN)
    jobs = max(1, jobs)
    each = max(1, len(cores) // jobs)
    return [[cores[(i * each + k) % len(cores)] for k in range(each)] for i in range(jobs)]


def _on_accelerator() -> bool:
    """Whether runs get a GPU or TPU. Asked of a process that ends, as it takes the memory."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return False
    code = "import jax; print(jax.default_backend())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if answer.returncode:
        raise ValueError(f"JAX finds no device: {answer.stderr.strip().splitlines()[-1]}")
    return answer.stdout.strip() != "cpu"


def _run_all(jobs: Sequence[Job], shares: Sequence[list[int]]) -> tuple[list[Job], int]:
    """Runs the jobs; returns those that failed, and the signal that stopped it all (0: none)."""
    each = f"{len(shares[0])} core{'s' * (len(shares[0]) != 1)}"
    print(f"{len(shares)} at once, {each} each", flush=True)
    failed, number = [], 0
    with tempfile.TemporaryDirectory() as compiled:
        pool = _Pool(shares, _environment(compiled), f"{_processor()}, {each} a run")
        with pool.stopped_by_signals() as signals:
            for count, ended in enumerate(pool.run(jobs), start=1):
                took = f"{ended.status} after {ended.seconds:.0f} s"
                print(f"[{count}/{len(jobs)}] {took}  {ended.job}", flush=True)
                if ended.status == "failed":
                    failed.append(ended.job)
            number = signals[0] if signals else 0
    return failed, number


class _Pool:
    """Processes, as many at once as there are shares of the cores, each on its own share."""

    def __init__(self, shares: Sequence[list[int]], environment: Mapping[str, str], machine: str):
        self._count = len(shares)
        self._free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for share in shares:
            self._free.put(share)
        self._environment = environment
        self._machine = machine
        self._processes: set[subprocess.Popen] = set()
        self._stopping = threading.Event()

    def run(self, jobs: Sequence[Job]) -> Iterator[Ended]:
        """Yields how each job went, as they end."""
        with ThreadPoolExecutor(self._count) as threads:
            for future in as_completed([threads.submit(self._perform, job) for job in jobs]):
                yield future.result()

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[list[int]]:
        """Passes SIGINT and SIGTERM on, and starts nothing after; yields those that have come."""
        came: list[int] = []

        def stop(number, frame):
            if not came:
                text = "Stopping: training runs save where they are. Once more ends them at once."
                print(text, file=sys.stderr)  # not stdout, which may be in the middle of a line
            came.append(number)
            self._stopping.set()
            for process in list(self._processes):
                process.terminate()

        signals = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, stop) for number in signals}
        try:
            yield came
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _perform(self, job: Job) -> Ended:
        share, started = self._free.get(), time.monotonic()
        try:
            left, before = job.commands(), []
            # A command that leaves as much to do as there was has failed.
            while left and left != before and not self._stopping.is_set():
                self._call(job, left[0], share)
                left, before = job.commands(), left
        finally:
            self._free.put(share)
        unfinished = "stopped" if self._stopping.is_set() else "failed"
        return Ended(job, unfinished if left else "done", time.monotonic() - started)

    def _call(self, job: Job, command: list[str], share: list[int]) -> None:
        job.workdir.mkdir(parents=True, exist_ok=True)
        _write_record(job, self._machine)
        with (job.workdir / "log.txt").open("a", encoding="utf-8") as log:
            print("$", shlex.join(command), file=log, flush=True)
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C comes through `stop`, and not twice
            )
            # XLA starts as many threads as it sees cores, later than this.
            if hasattr(os, "sched_setaffinity"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, share)
            self._processes.add(process)
            if self._stopping.is_set():
                process.terminate()  # `stop` has come before the process was in the set
            process.wait()
            self._processes.discard(process)


def _environment(compiled: str) -> dict[str, str]:
    """That of the runs, which share what they have compiled: many differ in the seed alone."""
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TQDM_MININTERVAL": "60",  # of a progress bar in a log file
    }


def _write_record(job: Job, machine: str) -> None:
    """run.json: what is run, for `measure` and for people, and on what, for `results`."""
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
    run_log.write_atomically(job.workdir / "run.json", text + "\n")


def _processor() -> str:
    """The name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _end_of_log(job: Job) -> str:
    text = (job.workdir / "log.txt").read_text("utf-8", errors="replace")
    last = text.rpartition("\n$ ")[2]  # of the command that failed
    lines = [line for line in last.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])


if __name__ == "__main__":
    sys.exit(main())
