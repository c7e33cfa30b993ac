"""Runs as SkyPilot managed jobs: a YAML file each, launched by `sky`.

A job runs `launch.sh experiment ... --run=ID` on a machine of its own, with a bucket mounted that
holds the work directories. SkyPilot starts it again after a preemption, and it continues from its
last checkpoint.
"""

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.harness.jobs import Job, Order, wait
from experiments.harness.sweep import ROOT
from transformer_jax.tools.cloud.launch import Stop, check_buckets

MOUNT = "/bucket"
_POLL_SECONDS = 60.0
# SkyPilot's error before the first launch, and once the machine that manages the jobs has stopped.
_NO_CONTROLLER = "No in-progress managed jobs"
_TASK = """\
name: {name}
workdir: {root}
resources:{resources}
file_mounts:
  {mount}:
    source: {address}
    mode: MOUNT
setup: |
  command -v python3.11 || python3 -m pip install --user uv
  command -v python3.11 || ~/.local/bin/uv python install 3.11
run: {run}
"""
_RUN = """\
command -v python3.11 || PATH=$(dirname "$(~/.local/bin/uv python find 3.11)"):$PATH
./launch.sh {command}
"""


def execute(order: Order) -> int:
    """Runs each job as a managed job; returns 0, since Ctrl-C leaves them with SkyPilot."""
    command = order.elsewhere()
    run_all(order.jobs, command, order.home, bucket=order.bucket, options=order.options)
    return 0


def run_all(
    jobs: Sequence[Job],
    command: Sequence[str],
    home: Path,
    *,
    bucket: str,
    options: Sequence[str],
) -> None:
    """Launches the jobs that SkyPilot does not have yet, and waits for all.

    command: what a machine runs, without --run=ID.
    home: the local folder of the work directories, which gets the YAML files.
    bucket: what is mounted, as "gs://NAME".
    options: fields of the YAML's `resources`, as "accelerators=L4:1", "use_spot=true".

    Raises:
      ValueError: where there is no SkyPilot, or it refuses.
    """
    files = write(jobs, command, home, bucket=bucket, options=options)
    if shutil.which("sky") is None:
        raise ValueError(
            f"found no sky on PATH: pip install 'skypilot[gcp]' (or another cloud) into an "
            f"environment of its own. The jobs are in {files[0].parent}"
        )
    names = _queued()
    if names is None:
        raise ValueError("sky jobs queue does not answer: see its message above")
    for job, file in zip(jobs, files, strict=True):
        if _name(job) not in names:
            launch = ["sky", "jobs", "launch", "--yes", "--detach-run", str(file)]
            if subprocess.run(launch, stdin=subprocess.DEVNULL).returncode:
                raise ValueError(f"sky refuses {file}: see its message above")
    print("Ctrl-C leaves all jobs with SkyPilot, and the same command continues.", flush=True)

    def queued() -> set[str] | None:
        names = _queued()
        return None if names is None else {job.id for job in jobs if _name(job) in names}

    # The bucket says whether they are done; it is copied once all have ended.
    wait(jobs, queued, _POLL_SECONDS, lambda job: "ended")


def write(
    jobs: Sequence[Job],
    command: Sequence[str],
    home: Path,
    *,
    bucket: str,
    options: Sequence[str],
) -> list[Path]:
    """Writes a YAML file for each job and returns their paths."""
    folder = home / "skypilot"
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for job in jobs:
        file = folder / f"{job.id}.yaml"
        file.write_text(task(_name(job), [*command, f"--run={job.id}"], bucket, options), "utf-8")
        files.append(file)
    return files


def task(name: str, command: Sequence[str], bucket: str, options: Sequence[str]) -> str:
    """The YAML of a managed job that runs a command of launch.sh.

    Raises ValueError for options that are not KEY=VALUE, and a command that names another bucket.
    """
    address = "/".join(bucket.split("/")[:3])
    try:
        check_buckets(command, address)
    except Stop as error:
        raise ValueError(str(error)) from error
    resources = []
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--options: {option!r} is not KEY=VALUE, as accelerators=L4:1")
        with contextlib.suppress(json.JSONDecodeError):  # true, 4 and the like are no texts
            value = json.loads(value)
        resources.append(f"\n  {_quoted(key)}: {_quoted(value)}")
    words = shlex.join(word.replace(address, MOUNT) for word in command)
    return _TASK.format(
        name=_quoted(name),
        root=_quoted(str(ROOT)),
        resources="".join(resources) or " {}",
        mount=MOUNT,
        address=_quoted(address),
        run=_quoted(_RUN.format(command=words)),
    )


def _quoted(value: Any) -> str:
    """A value in one line of YAML, of which JSON is a part but for its pairs of surrogates."""
    return json.dumps(value, ensure_ascii=False)


def _name(job: Job) -> str:
    return f"{job.folder.name.replace('_', '-')}-{job.id}"


def _queued() -> set[str] | None:
    """The names of all jobs that have not ended; None without an answer."""
    # As a table, a failed query ends well too, with a message in place of the jobs.
    command = ["sky", "jobs", "queue", "--all", "--skip-finished", "--output=json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if _NO_CONTROLLER in answer.stderr:
        return set()
    try:
        return {record["job_name"] for record in json.loads(answer.stdout)}
    except json.JSONDecodeError:
        print(f"{answer.stdout}{answer.stderr}".strip(), file=sys.stderr)
        return None
