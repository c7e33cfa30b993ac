"""A job: the runs of a sweep that share a work directory. An order: the jobs for an executor."""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.harness import results
from experiments.harness.sweep import ROOT, Run
from transformer_jax.config import load as overrides
from transformer_jax.runs.workdir import CHECKPOINTS

_LOG_LINES = 15  # shown of a failed run's log


def _literal(value: object) -> str:
    """A value as a command line has it: a text that would be read otherwise in quotation marks."""
    quoted = isinstance(value, str) and set("\\'\"") & set(value)
    return repr(value) if quoted else str(value)


@dataclasses.dataclass(frozen=True)
class Job:
    """All runs of a sweep that have one content: one work directory, several sets of labels."""

    folder: Path
    workdir: Path
    runs: tuple[Run, ...]

    def __str__(self) -> str:
        return f"{self.id}  {' | '.join(map(str, self.runs))}"

    @property
    def id(self) -> str:
        """The id of its runs."""
        return self.runs[0].id

    @functools.cached_property
    def process(self) -> tuple[str, str] | None:
        """Equal for jobs that one process may train one after the other; None: not with others.

        Rows and the folder of compiled programs are a process's. What is measured may depend on
        what the process did before, and a tracker may stay attached to it.
        """
        config = self.runs[0].resolved
        if self.runs[0].measure is not None or config.log.trackers:
            return None
        return config.rows, config.data.cache_dir

    @functools.cached_property
    def programs(self) -> tuple[str, str]:
        """What decides the programs that train it and that score it, as far as the config says.

        Runs that agree in it need not compile them again. The seed is no part of a program.
        """
        trained = overrides.identity(self.runs[0].resolved)
        trained.pop("seed", None)
        beside = ("optimizer.", "train.")
        scored = {key: value for key, value in trained.items() if not key.startswith(beside)}
        return json.dumps(trained, sort_keys=True), json.dumps([scored], sort_keys=True)

    def commands(self) -> list[list[str]]:
        """What is left to do: to train, to measure, both, or nothing."""
        run, workdir = self.runs[0], f"--workdir={self.workdir}"
        python = [sys.executable, "-m"]
        train = [*python, "transformer_jax.main", f"--config={ROOT / run.config}", workdir]
        train += [f"--config.{key}={_literal(value)}" for key, value in run.overrides.items()]
        if run.fork_from is not None:
            trunk = self.workdir.parent / run.fork_from.id
            place = trunk if run.fork_step is None else trunk / CHECKPOINTS / str(run.fork_step)
            train.append(f"--config.checkpoint.fork_from={_literal(str(place))}")
        measure = [*python, "experiments.harness.measure", f"--folder={self.folder}", workdir]
        commands = []
        if run.train and not results.is_trained(run, self.workdir):
            commands.append(train)
        if run.measure is not None and (commands or not results.is_measured(run, self.workdir)):
            commands.append(measure)
        return commands

    def end_of_log(self) -> str:
        """The last lines that its last command wrote, and where there are more."""
        path = self.workdir / "log.txt"
        text = path.read_text("utf-8", errors="replace") if path.exists() else "it has not begun"
        last = text.rpartition("\n$ ")[2]
        lines = [line for line in last.splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in (*lines[-_LOG_LINES:], path))


@dataclasses.dataclass(frozen=True)
class Order:
    """Jobs for an executor.

    Attributes:
      folder: the experiment's.
      home: the folder of the work directories on this machine.
      flags: what tells `experiments.run` elsewhere to plan the same runs, as "--sweep=cpu".
      at_once: how many jobs run at the same time; None: as many as fit.
      options: words for the executor (of sbatch, launch.sh tpu, SkyPilot).
      bucket: gs:// address that holds the work directories where `home` cannot; "" for none.
    """

    jobs: Sequence[Job]
    folder: Path
    home: Path
    flags: Sequence[str]
    at_once: int | None
    options: Sequence[str]
    bucket: str

    def elsewhere(self) -> list[str]:
        """The sweep as a command of launch.sh on a machine that has the checkout and the bucket.

        Raises:
          ValueError: the folder is not in the checkout, or a run names a bucket itself.
        """
        for run in (job.runs[0] for job in self.jobs):
            for key, value in run.overrides.items():
                if "gs://" in str(value) and f"--data_dir={value}" not in self.flags:
                    raise ValueError(
                        f"the run {run}: {key}={value}: other machines find what is in a bucket by "
                        "--data_dir alone"
                    )
        if not self.folder.is_relative_to(ROOT):
            raise ValueError(f"{self.folder} has to be in {ROOT}, which is what other machines get")
        return ["experiment", self.folder.name, *self.flags, f"--runs_dir={self.bucket}"]


def ready(jobs: Sequence[Job]) -> list[Job]:
    """Those with something left to do, but for forks of runs that are not done."""
    by_id = {job.id: job for job in jobs if job.commands()}
    trunks = {id: job.runs[0].fork_from for id, job in by_id.items()}
    return [by_id[id] for id, trunk in trunks.items() if trunk is None or trunk.id not in by_id]


def wait(
    jobs: Sequence[Job],
    queued: Callable[[], set[str] | None],
    seconds: float,
    state: Callable[[Job], str],
) -> None:
    """Waits until none of the jobs is in a queue, and prints which have left it.

    queued: returns the ids in the queue, None for no answer. It is called every so many seconds.
    state: what is known here of a job that has left it.
    """
    waiting = {job.id: job for job in jobs}
    while waiting:
        time.sleep(seconds)
        ids = queued()
        if ids is None:
            continue
        for job in [job for id, job in waiting.items() if id not in ids]:
            del waiting[job.id]
            print(f"[{len(jobs) - len(waiting)}/{len(jobs)}] {state(job)}  {job}", flush=True)
