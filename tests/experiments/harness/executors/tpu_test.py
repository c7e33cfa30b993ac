"""A sweep on a slice: a stand-in for launch.sh, on a host where a bucket is a folder."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from experiments import run
from experiments.harness import jobs
from experiments.harness.executors import tpu
from experiments.harness.sweep import ROOT
from tests.processes import wait_for

# In place of launch.sh, on a host where a bucket is a folder: gs://b is $BUCKET.
LAUNCH = f"""#!/bin/sh
echo "$*" >"$BUCKET/launched"
cd '{ROOT}'
set -- "$FOLDER" --sweep=measured --quick --runs_dir="$BUCKET/runs"
exec '{sys.executable}' -m experiments.run "$@"
"""
GCLOUD = """#!/bin/sh
for target; do source=${before}; before=$target; done
case "$2" in
    ls) test -e "$BUCKET/${target#gs://b/}" ;;
    rsync) cp -r "$BUCKET/${source#gs://b/}/." "$target" ;;
esac
"""
FLAGS = ["question", "--sweep=measured", "--quick", "--executor=tpu", "--bucket=gs://b/runs"]


@pytest.fixture
def clone(folder, tmp_path, monkeypatch):
    """In place of the repository: the experiment and launch.sh, and a stand-in for gcloud."""
    clone = tmp_path / "clone"
    shutil.copytree(folder, clone / "experiments/question")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bucket").mkdir()
    for path, script in ((clone / "launch.sh", LAUNCH), (tmp_path / "bin/gcloud", GCLOUD)):
        path.write_text(script)
        path.chmod(0o755)
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for module in (run, jobs, tpu):
        monkeypatch.setattr(module, "ROOT", clone)
    return clone


@pytest.mark.long
def test_a_sweep_runs_on_a_slice_and_its_results_come_back(clone, tmp_path):
    slice_ = "--options=--accelerator=v6e-8 --spot"
    assert run.main([*FLAGS, slice_, f"--runs_dir={tmp_path / 'runs'}"]) == 0
    launched = "tpu --accelerator=v6e-8 --spot experiment question --sweep=measured --quick"
    assert (tmp_path / "bucket/launched").read_text() == f"{launched} --runs_dir=gs://b/runs\n"
    report = tmp_path / "runs/question/quick/README.md"
    assert "| 1 | 0 | False |" in report.read_text()


# In place of launch.sh: takes its time to delete the slice.
SLOW = """#!/bin/sh
trap 'sleep 2; touch "$BUCKET/deleted"; exit 130' INT
touch "$BUCKET/launched"
while :; do sleep 0.05; done
"""
# The command, in the clone.
COMMAND = """
import sys
from pathlib import Path
from experiments import run
from experiments.harness import jobs
from experiments.harness.executors import tpu
run.ROOT = jobs.ROOT = tpu.ROOT = Path(sys.argv[1])
sys.exit(run.main(sys.argv[2:]))
"""


@pytest.mark.long
def test_ctrl_c_leaves_the_launcher_the_time_to_delete_the_slice(clone, tmp_path):
    (clone / "launch.sh").write_text(SLOW)
    command = [sys.executable, "-c", COMMAND, clone, *FLAGS, f"--runs_dir={tmp_path / 'runs'}"]
    sweep = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    wait_for((tmp_path / "bucket/launched").exists, sweep)
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does
    assert sweep.wait() == 128 + signal.SIGINT
    assert (tmp_path / "bucket/deleted").exists()
