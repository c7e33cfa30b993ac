"""Runs an experiment and writes its report. The same command goes on after any interruption.

    python -m experiments.run FOLDER [--sweep=NAME] [--quick] [--dry_run] [--jobs=N] [--run=ID]
        [--data_dir=DIR] [--runs_dir=runs/experiments]
        [--executor=local|slurm|tpu|skypilot] [--options="..."] [--bucket=gs://BUCKET/FOLDER]

Every run has the work directory RUNS_DIR/FOLDER/ID, with the end of its story in log.txt. What is
finished is not run again, what was interrupted is resumed, and what failed is tried again. Once all
runs are there, csv, figures and summary.json go into FOLDER/results, and the table into its README;
with --quick into RUNS_DIR/FOLDER/quick.

    local      processes on this machine, each with its share of the cores and GPUs
    slurm      a job array; RUNS_DIR and this checkout are on a file system that the nodes share
    tpu        one after the other on one slice of one host, by `launch.sh tpu`
    skypilot   a managed job each

The last two keep their work directories in BUCKET/FOLDER/ID, from which all but the checkpoints is
copied to RUNS_DIR. --options: of sbatch ("--partition=gpu --gres=gpu:1 --time=8:00:00"), of
`launch.sh tpu` ("--accelerator=v5e-8 --zone=us-west4-a --spot"), or SkyPilot's resources
("accelerators=L4:1 use_spot=true").
"""

import argparse
import dataclasses
import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from experiments.harness import results
from experiments.harness.executors import local, skypilot, slurm
from experiments.harness.jobs import Job
from experiments.harness.sweep import ROOT, Run, part
from transformer_jax import build, overrides
from transformer_jax.data import tokenizer
from transformer_jax.devices import mesh as sharding
from transformer_jax.workdir import LABELS, TOKENIZER, write_atomically

# Executors, and the flags that each reads beside the others.
_READS = {
    "local": ("jobs",),
    "slurm": ("jobs", "options"),
    "tpu": ("jobs", "options", "bucket"),
    "skypilot": ("options", "bucket"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status: 0 once the report is written."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run", description="Runs an experiment and writes its report."
    )
    parser.add_argument("folder", help="its name, or the path of a folder elsewhere")
    parser.add_argument("--sweep", help="name in its sweep.py (default: the first)")
    parser.add_argument("--quick", action="store_true", help="the small version of the sweep")
    parser.add_argument("--dry_run", action="store_true", help="only show what would be run")
    parser.add_argument("--run", metavar="ID", help="only this run, and no report")
    parser.add_argument("--jobs", type=int, help="runs at once (default: what fits)")
    parser.add_argument("--data_dir", help="sets data.dir, for sweeps that need data")
    parser.add_argument("--runs_dir", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--executor", choices=_READS, default="local", help="where runs go")
    parser.add_argument("--options", help="of sbatch, launch.sh tpu or SkyPilot")
    parser.add_argument("--bucket", help="gs://BUCKET/FOLDER for work directories (tpu, skypilot)")
    try:
        return _main(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while waiting for runs elsewhere
        return 128 + signal.SIGINT


def _main(arguments: argparse.Namespace) -> int:
    # The devices are for the runs, which inherit the environment and not this: a TPU serves one
    # process only.
    jax.config.update("jax_platforms", "cpu")
    for flag in ("jobs", "options", "bucket"):
        if getattr(arguments, flag) is not None and flag not in _READS[arguments.executor]:
            raise ValueError(f"--executor={arguments.executor} does not read --{flag}")
    folder = _find(arguments.folder)
    sweeps = part(folder, "sweep").SWEEPS
    name = arguments.sweep or next(iter(sweeps))
    if name not in sweeps:
        raise ValueError(f"{folder.name} has no sweep {name!r}, but {', '.join(sweeps)}")
    runs = sweeps[name](arguments.quick)
    if arguments.data_dir is not None:
        arguments.data_dir = _data_dir(arguments.data_dir, arguments.executor)
        runs = [_with_data(run, arguments.data_dir) for run in runs]
    if arguments.run is not None:
        runs = [run for run in runs if run.id == arguments.run]
        if not runs:
            raise ValueError(f"{folder.name}, sweep {name}, has no run {arguments.run} (any more)")
    home = arguments.runs_dir.expanduser().resolve() / folder.name
    if "bucket" in _READS[arguments.executor]:
        _fetch(arguments.bucket, home)
    jobs = plan(runs, folder, home)
    report = part(folder, "report").report  # before hours have gone into what it reports on
    base = home / "quick" if arguments.quick else folder
    if arguments.quick and arguments.run is None:
        base.mkdir(parents=True, exist_ok=True)
        (base / "README.md").write_text("\n".join(results.markers(name)) + "\n", "utf-8")
    if arguments.run is None:
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
        failed, signalled = _execute(left, arguments, name, home)
        if signalled:
            print("Stopped. The same command goes on from here.")
            return 128 + signalled
    for job in failed:
        print(f"\nfailed: {job}\n{job.end_of_log()}")
    if failed:
        print(f"\n{len(failed)} of {len(jobs)} runs are missing, so there is no report:")
        print(*(f"  {job}" for job in failed), sep="\n")
        return 1
    if arguments.run is not None:
        return 0

    out = base / "results"
    out.mkdir(exist_ok=True)
    finished = [results.load(run, home / run.id) for run in runs]
    text = f"{report(finished, out).strip()}\n\n{results.provenance(finished)}"
    results.insert(base / "README.md", name, text)
    print(f"\n{text}\n\nThe report is in {base / 'README.md'}, its files in {out}")
    return 0


def _execute(
    jobs: Sequence[Job], arguments: argparse.Namespace, sweep: str, home: Path
) -> tuple[list[Job], int]:
    """Runs the jobs; returns those that failed, and the signal that stopped it all (0: none)."""
    if arguments.executor == "local":
        return local.run_all(jobs, 1 if arguments.run else arguments.jobs)

    folder = jobs[0].folder
    options = shlex.split(arguments.options or "")
    same = [f"--sweep={sweep}", *["--quick"] * arguments.quick]
    if arguments.data_dir is not None:
        same.append(f"--data_dir={arguments.data_dir}")
    if arguments.executor == "slurm":
        python = [sys.executable, "-m", "experiments.run"]
        task = [*python, str(folder), *same, f"--runs_dir={home.parent}"]
        return slurm.run_all(jobs, task, home, at_once=arguments.jobs, options=options), 0

    if not folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} has to be in {ROOT}, which is what other machines get")
    again = ["experiment", folder.name, *same, f"--runs_dir={arguments.bucket}"]
    if arguments.executor == "tpu":
        at_once = [f"--jobs={arguments.jobs}"] * (arguments.jobs is not None)
        launch = [ROOT / "launch.sh", "tpu", *options, *again, *at_once]
        # Ctrl-C is for the launcher, which saves and deletes the slice. By default `subprocess.run`
        # kills it then; a handler that is no function would be inherited by it.
        previous = signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            status = subprocess.run(launch).returncode
        finally:
            signal.signal(signal.SIGINT, previous)
        if status > 128:
            return [], status - 128
    else:
        skypilot.run_all(jobs, again, home, bucket=arguments.bucket, options=options)
    _fetch(arguments.bucket, home)
    return [job for job in jobs if job.commands()], 0


def _fetch(bucket: str | None, home: Path) -> None:
    """Copies what runs elsewhere have written, but for their checkpoints."""
    if not re.fullmatch("gs://[^/]+/.*[^/]", bucket or ""):
        raise ValueError(
            f"--bucket={bucket}: expected gs://BUCKET/FOLDER, where work directories outlive the "
            "machines of this executor"
        )
    if shutil.which("gcloud") is None:
        raise ValueError("found no gcloud on PATH: https://cloud.google.com/sdk/docs/install")
    source = f"{bucket}/{home.name}"
    if subprocess.run(["gcloud", "storage", "ls", source], capture_output=True).returncode:
        return  # nothing has run yet
    home.mkdir(parents=True, exist_ok=True)
    copy = ["gcloud", "storage", "rsync", "--recursive", "--exclude=.*/checkpoints/.*"]
    if subprocess.run([*copy, source, home]).returncode:
        raise ValueError(f"could not copy {source} to {home}: see the message of gcloud above")


def _data_dir(place: str, executor: str) -> str:
    """The folder or address as machines of the executor find it, wherever they start a run."""
    if "://" in place:
        return place
    if "bucket" in _READS[executor]:
        raise ValueError(
            f"--data_dir={place}: the machines of --executor={executor} do not have this folder: "
            "copy it into the bucket, and give its gs:// address"
        )
    return str(Path(place).expanduser().resolve())


def _with_data(run: Run, place: str) -> Run:
    """The run with this data.dir."""
    return dataclasses.replace(run, overrides={**run.overrides, "data.dir": place})


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

    Where the vocabulary comes from the data, a stand-in takes its place; and the CPU that of every
    device that the mesh needs, as a run's devices are its own.

    Raises:
      ValueError, FileNotFoundError: naming the run.
    """
    with tempfile.TemporaryDirectory() as stand_ins:
        workdir = Path(stand_ins)
        tokenizer.train_tokenizer("bytes", (), 0, [tokenizer.MASK]).save(workdir / TOKENIZER)
        write_atomically(workdir / LABELS, json.dumps(["a", "b"]))
        try:
            mesh = sharding.MeshSettings(**run.resolved.mesh.to_dict())
            built = build.build(run.resolved, workdir, jax.devices()[:1] * mesh.least)
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


if __name__ == "__main__":
    sys.exit(main())
