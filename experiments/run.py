"""Runs an experiment and writes its report. After any interruption the same command continues.

    python -m experiments.run FOLDER --new
    python -m experiments.run FOLDER [--sweep=NAME|--entry=FILE] [--quick] [--dry_run] [--jobs=N]
        [--run=ID]
        [--data_dir=DIR] [--runs_dir=runs/experiments]
        [--executor=local|slurm|tpu|skypilot] [--options="..."] [--bucket=gs://BUCKET/FOLDER]

Every run has the work directory RUNS_DIR/FOLDER/ID, whose log.txt holds what it printed. What is
finished is not run again, what was interrupted is resumed, and what failed is tried again. Once all
runs are there, csv, figures and summary.json go into FOLDER/results, and the table into its README;
with --quick into RUNS_DIR/FOLDER/quick. A folder without report.py gets a report of
labels, scores and curves (`harness.default_report`). --new makes a folder with an example.

    local      processes on this machine, each with its share of the cores and GPUs
    slurm      a job array; RUNS_DIR and this checkout are on a file system that the nodes share
    tpu        one after the other on one slice of one host, by `launch.sh tpu`
    skypilot   a managed job each

The last two keep their work directories in BUCKET/FOLDER/ID, from which all but the checkpoints is
copied to RUNS_DIR. --options: of sbatch ("--partition=gpu --gres=gpu:1 --time=8:00:00"), of
`launch.sh tpu` ("--accelerator=v5e-8 --zone=us-west4-a --spot"), or SkyPilot's resources
("accelerators=L4:1 use_spot=true").
"""

if __name__ == "__main__":  # before the imports below, which take seconds
    import contextlib

    from experiments import flags
    from transformer_jax.process import interrupt, progress

    flags.parse(None)  # --help and a mistyped flag end here
    interrupt.install()
    loading = contextlib.ExitStack()
    loading.enter_context(progress.phase("Loading libraries"))

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax

from experiments import flags
from experiments.harness import default_report, new, results
from experiments.harness.executors import EXECUTORS, bucket
from experiments.harness.jobs import Job, Order, ready
from experiments.harness.plan import check_listed, plan
from experiments.harness.sweep import ROOT, Run, part
from transformer_jax.config.rows import mistakes
from transformer_jax.runs.workdir import write_atomically
from transformer_jax.tools.reports.records import SWEEPS


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 0 once the report is written."""
    arguments = flags.parse(argv)
    try:
        if arguments.new:
            return _new(arguments, flags.parse([arguments.folder, "--new"]))
        return _main(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _main(arguments: argparse.Namespace) -> int:
    # The devices are for the runs, which inherit the environment but not this setting: a TPU serves
    # one process only.
    jax.config.update("jax_platforms", "cpu")
    reads = EXECUTORS[arguments.executor].reads
    for flag in ("jobs", "options", "bucket"):
        if getattr(arguments, flag) is not None and flag not in reads:
            raise ValueError(f"--executor={arguments.executor} does not read --{flag}")
    try:
        arguments.options = shlex.split(arguments.options or "")
    except ValueError as error:
        raise ValueError(f"--options={arguments.options}: {error}") from error
    if arguments.data_dir is not None:
        arguments.data_dir = _data_dir(arguments.data_dir, arguments.executor)
    folder = _find(arguments.folder)
    sweep, runs = _runs(folder, arguments)
    if arguments.jobs is None and "jobs" in reads:
        arguments.jobs = getattr(part(folder, "sweep"), "JOBS", None)
    if not (arguments.jobs is None or isinstance(arguments.jobs, int) and arguments.jobs > 0):
        raise ValueError(f"--jobs, or JOBS in sweep.py, is {arguments.jobs}: expected 1 or more")
    home = _path(arguments.runs_dir).resolve() / folder.name
    if "bucket" in reads:
        bucket.fetch(arguments.bucket, home)
    jobs = plan(runs, folder, home)
    # Before hours have gone into what it reports on.
    report = part(folder, "report").report if (folder / "report.py").exists() else None
    if report is None and arguments.run is None:
        default_report.check(runs)
    base = home / "quick" if arguments.quick else folder
    if arguments.run is None:
        results.check_markers(base / "README.md", sweep)

    todo = _show(jobs, f"{folder.name}, sweep {sweep}", each=arguments.dry_run)
    if arguments.dry_run:
        return 0
    if arguments.run is None:
        _write_order(jobs, home, sweep + " --quick" * arguments.quick)
    if todo:
        if signalled := _execute_all(jobs, arguments, folder, home, sweep):
            print("Stopped. The same command continues from here.")
            return 128 + signalled
        if _failed(jobs):
            return 1
    if arguments.run is not None:
        return 0

    out = base / "results"
    out.mkdir(parents=True, exist_ok=True)
    finished = [results.load(run, home / run.id) for run in runs]
    body = report(finished, out) if report else default_report.report(finished, out, sweep)
    text = f"{body.strip()}\n\n{results.provenance(finished)}"
    results.insert(base / "README.md", sweep, text)
    print(f"\n{text}\n\nThe report is in {base / 'README.md'}, its files in {out}")
    return 0


def _new(arguments: argparse.Namespace, alone: argparse.Namespace) -> int:
    """Makes the folder of a new experiment: in this repository, or where a path says."""
    if arguments != alone:
        raise ValueError("--new makes a folder and runs nothing: give the other flags afterwards")
    name = arguments.folder
    if not name.isprintable():
        raise ValueError(f"{name!r} is no name for a folder: it has characters that do not show")
    elsewhere = os.sep in name or name.startswith("~")
    place = _path(name) if elsewhere else ROOT / "experiments" / name
    print(new.make(place.absolute(), shlex.quote(name)))
    return 0


def _runs(folder: Path, arguments: argparse.Namespace) -> tuple[str, list[Run]]:
    """The name of the sweep that is asked for, and those of its runs that are."""
    path, sweeps = folder / "sweep.py", getattr(part(folder, "sweep"), "SWEEPS", None)
    if not isinstance(sweeps, dict) or not sweeps:
        raise ValueError(f"{path} lacks SWEEPS = {{name: function(quick) -> list of runs}}")
    name = arguments.sweep or next(iter(sweeps))
    if name not in sweeps:
        raise ValueError(f"{folder.name} has no sweep {name!r}, but {', '.join(sweeps)}")
    entered = getattr(part(folder, "sweep"), "entered", None)
    if arguments.entry is not None:
        if not entered:
            raise ValueError(f"{folder.name} takes no entries: leave --entry out")
        name, runs = entered(_path(arguments.entry), arguments.quick)  # whose errors name it
        if arguments.sweep not in (None, name):
            raise ValueError(f"--sweep={arguments.sweep}: the entry is of {name}: leave it out")
    with mistakes(path):
        if arguments.entry is None:
            runs = list(sweeps[name](arguments.quick))
        if others := [run for run in runs if not isinstance(run, Run)]:
            raise ValueError(f"the sweep {name!r} lists {others[0]!r:.100}, which is no Run")
    defaults = {"rows": str(folder / "rows.py")} if (folder / "rows.py").exists() else {}
    place = {} if arguments.data_dir is None else {"data.dir": arguments.data_dir}

    def completed(run: Run) -> Run:
        trunk = None if run.fork_from is None else completed(run.fork_from)
        overrides = {**defaults, **run.overrides, **place}
        return dataclasses.replace(run, overrides=overrides, fork_from=trunk)

    runs = list(map(completed, runs)) if defaults or place else runs
    with mistakes(path):
        check_listed(runs)
    if arguments.run is not None:
        runs = [run for run in runs if run.id == arguments.run]
        if not runs:
            raise ValueError(f"{folder.name}, sweep {name}, has no run {arguments.run} (any more)")
    return name, runs


def _show(jobs: Sequence[Job], sweep: str, *, each: bool) -> list[Job]:
    """Prints how many jobs are done, and how it stands with each; returns those not done."""
    todo = [job for job in jobs if job.commands()]
    new = [job for job in todo if not job.workdir.exists()]
    print(
        f"{sweep}: {len(jobs) - len(todo)} of {len(jobs)} run{'s' * (len(jobs) != 1)} done, "
        f"{len(todo) - len(new)} begun, {len(new)} new",
        flush=True,
    )
    done = [job for job in jobs if job not in todo]
    for place, count in Counter(filter(None, map(_moved, done))).items():
        print(
            f"  {count} done with the data in {place}, and not done again: the data given now is "
            "taken to be the same. If it is not, give another --runs_dir"
        )
    for job in jobs if each else ():
        state = "new" if job in new else "begun" if job in todo else "done"
        print(f"  {state:6}{job}")
    return todo


def _moved(job: Job) -> str | None:
    """The folder whose data the job was done with, where another is given now.

    Whether the data is the same would be known only after minutes in which it is prepared.
    """
    key, (run, *_) = "data.dir", job.runs
    before = results.read_json(job.workdir / "run.json").get("overrides", {}).get(key)
    return before if before != run.overrides.get(key) else None


def _write_order(jobs: Sequence[Job], home: Path, sweep: str) -> None:
    """Leaves the order of the sweep's runs for `compare` and `report`, which know no sweeps."""
    home.mkdir(parents=True, exist_ok=True)
    orders = results.read_json(home / SWEEPS) | {sweep: [job.id for job in jobs]}
    write_atomically(home / SWEEPS, json.dumps(orders, indent=1) + "\n")


def _execute_all(
    jobs: Sequence[Job], arguments: argparse.Namespace, folder: Path, home: Path, sweep: str
) -> int:
    """Runs the jobs, forks after what they are forks of; returns the signal that stopped it, or 0.

    A job that has failed is not tried again, and what forks from it is left.
    """
    tried: set[str] = set()
    while now := [job for job in ready(jobs) if job.id not in tried]:
        if signalled := _execute(now, arguments, folder, home, sweep):
            return signalled
        tried |= {job.id for job in now}
    return 0


def _execute(
    jobs: Sequence[Job], arguments: argparse.Namespace, folder: Path, home: Path, sweep: str
) -> int:
    """Runs the jobs; returns the signal that stopped it all, or 0."""
    executor = EXECUTORS[arguments.executor]
    passed = [f"--sweep={sweep}", *["--quick"] * arguments.quick]
    for flag in ("entry", "data_dir"):
        if getattr(arguments, flag) is not None:
            passed.append(f"--{flag}={getattr(arguments, flag)}")
    signalled = executor.execute(
        Order(
            jobs=jobs,
            folder=folder,
            home=home,
            flags=passed,
            at_once=1 if arguments.run else arguments.jobs,
            options=arguments.options,
            bucket=arguments.bucket or "",
        )
    )
    if "bucket" in executor.reads and not signalled:
        bucket.fetch(arguments.bucket, home)
    return signalled


def _failed(jobs: Sequence[Job]) -> bool:
    """Whether jobs are not done, which it shows with the ends of their logs."""
    failed = [job for job in jobs if job.commands()]
    for job in failed:
        print(f"\nfailed: {job}\n{job.end_of_log()}")
    if failed:
        print(f"\n{len(failed)} of {len(jobs)} runs are missing, so there is no report:")
        print(*(f"  {job}" for job in failed), sep="\n")
    return bool(failed)


def _data_dir(place: str, executor: str) -> str:
    """The folder or address as machines of the executor find it, wherever they start a run."""
    if "://" in place:
        return place
    if "bucket" in EXECUTORS[executor].reads:
        raise ValueError(
            f"--data_dir={place}: the machines of --executor={executor} do not have this folder: "
            "copy it into the bucket, and give its gs:// address"
        )
    return str(_path(place).resolve())


def _path(name: str | Path) -> Path:
    """The path that a flag names, where ~ is a home. Raises ValueError where there is none."""
    if not str(name):
        raise ValueError("an empty name of a folder: give one, as --runs_dir=runs/experiments")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{name}: {error}") from error


def _find(name: str) -> Path:
    """The folder of an experiment of this repository, or any other."""
    for folder in (ROOT / "experiments" / name, _path(name).resolve()):
        if (folder / "sweep.py").exists():
            return folder
    folders = {path.parent.name for path in (ROOT / "experiments").glob("*/sweep.py")}
    names = sorted(folders - {"harness"})
    raise FileNotFoundError(
        f"there is no experiment {name!r}, but {', '.join(names) or 'none'}; an experiment is a "
        f"folder with a sweep.py, which `./launch.sh experiment {name} --new` makes"
    )


if __name__ == "__main__":
    loading.close()
    sys.exit(main())
