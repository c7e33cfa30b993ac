"""The YAML of managed jobs, which SkyPilot's own loader reads, and how they are launched.

SkyPilot is not a dependency: the test that needs it looks for `sky` on PATH, which may belong to
any environment.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from experiments import run
from experiments.harness.executors import skypilot
from experiments.harness.jobs import Job, wait
from experiments.harness.sweep import ROOT, Run

# Prints what SkyPilot has understood of the file that it is given.
LOAD = """
import sys, sky
task = sky.Task.from_yaml(sys.argv[1])
(resources,) = task.resources
mount, storage = next(iter(task.storage_mounts.items()))
print(task.name, task.workdir, resources.accelerators, resources.use_spot)
print(mount, storage.source, storage.mode.name)
print(task.setup)
print(task.run)
"""
COMMAND = ["experiment", "question", "--data_dir=gs://b/it's data", "--runs_dir=gs://b/runs"]


@pytest.fixture
def job(tmp_path):
    one = Run(config="configs/bigram_copy.py", overrides={}, labels={"seed": 0})
    return Job(tmp_path / "my_question", tmp_path / "runs" / one.id, (one,))


def test_skypilot_reads_what_is_written(job, tmp_path):
    sky = shutil.which("sky")
    if sky is None:
        pytest.skip("needs SkyPilot's `sky` on PATH")
    options = ["accelerators=L4:1", "use_spot=true"]
    (file,) = skypilot.write([job], COMMAND, tmp_path, bucket="gs://b/runs", options=options)
    python = Path(sky).read_text().splitlines()[0].removeprefix("#!")
    answer = subprocess.run([python, "-c", LOAD, str(file)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.strip().splitlines()
    assert lines[0] == f"my-question-{job.id} {ROOT} {{'L4': 1}} True"
    assert lines[1] == "/bucket gs://b MOUNT"
    command = "./launch.sh experiment question '--data_dir=/bucket/it'\"'\"'s data'"
    assert lines[-1] == f"{command} --runs_dir=/bucket/runs --run={job.id}"


def test_options_are_fields_of_resources():
    with pytest.raises(ValueError, match="'L4' is not KEY=VALUE"):
        skypilot.task("name", [], "gs://b/runs", ["L4"])


# Launches into the folder $SKY, in which a file stands for a job, and ends a job whenever it is
# asked what there is. What it says without jobs, or while $SKY.down is there, SkyPilot 0.14 says.
SKY = r"""#!/bin/sh
case "$2" in
    launch) for f; do :; done
        touch "$SKY/$(sed -n 's/^name: //p' "$f")"; echo "$f" >>"$SKY.launched" ;;
    queue)
        if test -e "$SKY.down"; then
            echo "Failed to query managed jobs: [builtins.ValueError] no connection"
        elif test -z "$(ls "$SKY")"; then
            echo "sky.exceptions.ClusterNotUpError: No in-progress managed jobs." >&2
            exit 1
        else
            echo "[$(ls "$SKY" | sed 's/.*/{"job_name": "&", "task_name": "x"}/' | paste -sd,)]"
            rm -f "$(find "$SKY" -type f | head -n 1)"
        fi ;;
esac
"""


@pytest.fixture
def sky(tmp_path, monkeypatch):
    """The folder of the jobs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sky").write_text(SKY)
    (tmp_path / "bin/sky").chmod(0o755)
    (tmp_path / "sky").mkdir()
    monkeypatch.setenv("SKY", str(tmp_path / "sky"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(skypilot, "_POLL_SECONDS", 0.0)
    return tmp_path / "sky"


def test_only_jobs_that_skypilot_does_not_have_are_launched(job, sky, tmp_path, capsys):
    other = Run(config="configs/bigram_copy.py", overrides={"seed": 1}, labels={"seed": 1})
    jobs = [job, Job(job.folder, job.workdir.with_name(other.id), (other,))]
    (sky / f"my-question-{job.id}").touch()
    skypilot.run_all(jobs, COMMAND, tmp_path / "runs", bucket="gs://b/runs", options=[])
    launched = (tmp_path / "sky.launched").read_text().split()
    assert launched == [str(tmp_path / f"runs/skypilot/{other.id}.yaml")]
    out = capsys.readouterr().out
    assert "[2/2] ended" in out and "done" not in out  # which the bucket alone knows


def test_the_first_jobs_are_launched(job, sky, tmp_path):
    skypilot.run_all([job], COMMAND, tmp_path / "runs", bucket="gs://b/runs", options=[])
    assert len((tmp_path / "sky.launched").read_text().split()) == 1


def test_a_failed_query_is_no_answer(job, sky, tmp_path, capsys):
    (tmp_path / "sky.down").touch()
    with pytest.raises(ValueError, match="sky jobs queue does not answer"):
        skypilot.run_all([job], COMMAND, tmp_path / "runs", bucket="gs://b/runs", options=[])
    assert "Failed to query managed jobs" in capsys.readouterr().err
    assert not (tmp_path / "sky.launched").exists()


def test_no_answer_ends_no_waiting(job):
    answers = iter([{job.id}, None, {job.id}, set()])
    wait([job], lambda: next(answers), 0.0, lambda job: "ended")
    assert list(answers) == []


def test_what_is_missing_is_told(tmp_path, monkeypatch, capsys, job):
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["dependency", f"--runs_dir={tmp_path}", "--executor=skypilot"]
    assert run.main(command) == 1
    assert "expected gs://BUCKET/FOLDER" in capsys.readouterr().err
    assert run.main([*command, "--bucket=gs://b/runs"]) == 1
    assert "found no gcloud on PATH" in capsys.readouterr().err
    with pytest.raises(ValueError, match="found no sky on PATH"):
        skypilot.run_all([job], COMMAND, tmp_path, bucket="gs://b/runs", options=[])
