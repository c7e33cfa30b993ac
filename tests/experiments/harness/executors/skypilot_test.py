"""The YAML of managed jobs, and how they are launched by a stand-in for `sky`."""

import dataclasses

import pytest
import yaml

from experiments.harness.executors import skypilot
from experiments.harness.jobs import Job, Order, wait
from experiments.harness.sweep import ROOT, Run
from tests.experiments.harness import runs

COMMAND = ["experiment", "question", "--data_dir=gs://b/it's data", "--runs_dir=gs://b/runs"]


@pytest.fixture
def job(tmp_path):
    return runs.job(tmp_path / "my_question")


def test_a_job_is_written_as_skypilot_reads_it(job, tmp_path):
    options = ["accelerators=L4:1", "use_spot=true"]
    (file,) = skypilot.write([job], COMMAND, tmp_path, bucket="gs://b/runs", options=options)
    task = yaml.safe_load(file.read_text())
    assert (task["name"], task["workdir"]) == (f"my-question-{job.id}", str(ROOT))
    assert task["resources"] == {"accelerators": "L4:1", "use_spot": True}
    assert task["file_mounts"] == {"/bucket": {"source": "gs://b", "mode": "MOUNT"}}
    command = "./launch.sh experiment question '--data_dir=/bucket/it'\"'\"'s data'"
    expected = f"{command} --runs_dir=/bucket/runs --run={job.id}"
    assert task["run"].splitlines()[-1] == expected


def test_a_bucket_that_is_not_mounted_is_refused():
    command = ["experiment", "question", "--data_dir=gs://b-large/data"]
    with pytest.raises(ValueError, match="mount gs://b alone; copy there what is in gs://b-large"):
        skypilot.task("name", command, "gs://b/runs", [])


def test_a_run_names_no_bucket_itself(tmp_path):
    """Its machine would take the address for a folder; a flag's it finds."""
    one = Run(config="configs/bigram_copy.py", overrides={"data.dir": "gs://b/x"}, labels={"a": 1})
    order = Order(
        jobs=[Job(tmp_path, tmp_path, (one,))],
        folder=ROOT / "experiments" / "question",
        home=tmp_path,
        flags=["--data_dir=gs://b/x"],
        at_once=None,
        options=[],
        bucket="gs://b/runs",
    )
    assert "--data_dir=gs://b/x" in order.elsewhere()
    with pytest.raises(ValueError, match="the run a=1: data.dir=gs://b/x: .*--data_dir alone"):
        dataclasses.replace(order, flags=[]).elsewhere()


# Launches into the folder $SKY, in which a file stands for a job, and ends a job whenever it is
# asked what there is. What it says without jobs, or while $SKY.down is there, SkyPilot 0.14 says.
SKY = r"""#!/bin/sh
case "$2" in
    launch) for f; do :; done
        touch "$SKY/$(sed -n 's/^name: "\(.*\)"$/\1/p' "$f")"; echo "$f" >>"$SKY.launched" ;;
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
    other = runs.job(job.folder, seed=1)
    (sky / f"my-question-{job.id}").touch()
    skypilot.run_all([job, other], COMMAND, tmp_path / "runs", bucket="gs://b/runs", options=[])
    launched = (tmp_path / "sky.launched").read_text().split()
    assert launched == [str(tmp_path / f"runs/skypilot/{other.id}.yaml")]
    out = capsys.readouterr().out
    assert "[2/2] ended" in out and "done" not in out  # which the bucket alone knows


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
