"""The lease of a work directory, and the code in the bucket."""

import json
import signal
import time

import pytest

from tests.processes import wait_for
from tests.tools.cloud.stand_in import UNTIL_STOPPED


@pytest.mark.long
def test_a_launch_beside_another_one_is_refused_and_ctrl_c_saves_and_deletes(cloud):
    first = cloud.start(JOB=UNTIL_STOPPED)
    wait_for(lambda: (cloud.workdir / "results.json").exists(), first)
    status, out = cloud.launch()
    assert status == 1 and f"is launched already, by process {first.pid} on" in out
    assert first.poll() is None and not cloud.calls("delete")

    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 130 and "Stopping: training saves" in out
    assert "preempted" in (cloud.workdir / "results.json").read_text()
    assert cloud.is_clean()
    assert cloud.launch(JOB="step 8; status finished")[0] == 0


@pytest.mark.long
def test_a_lease_shows_signs_of_life_while_a_host_installs(cloud):
    lease, go = cloud.workdir / "launch/lease", cloud.folder / "go"
    wait = "touch $CLOUD/installs; for _ in {1..4000}; do [[ -e $CLOUD/go ]] || sleep 0.05; done"
    launch = cloud.start(PIP_DOES=wait)
    wait_for((cloud.folder / "installs").exists, launch)
    since = time.time()
    wait_for(lambda: json.loads(lease.read_text())["time"] > since + 1, launch)
    go.touch()
    assert launch.communicate(timeout=300) and launch.returncode == 0
    assert cloud.is_clean()


def test_a_lease_without_a_sign_of_life_is_taken_over(cloud):
    lease = cloud.workdir / "launch/lease"
    lease.parent.mkdir(parents=True)
    lease.write_text(json.dumps({"host": "gone", "process": 1, "time": time.time() - 3600}))
    status, out = cloud.launch()
    assert status == 0 and "Taking over" in out and cloud.is_clean()


@pytest.mark.long
def test_what_a_killed_launcher_left_is_taken_over(cloud):
    once = "[[ $target != */lease || $(count lease) == 1 ]] || exit 0"  # none comes after the kill
    first = cloud.start(JOB=UNTIL_STOPPED, ON_WRITE=once)
    wait_for(lambda: (cloud.workdir / "results.json").exists(), first)
    first.kill()
    first.communicate()
    (cloud.workdir / "launch/lease").unlink()  # as if long ago
    status, out = cloud.launch(JOB="status finished")
    assert status == 0 and len(cloud.calls("create")) == 1
    assert (cloud.workdir / "metrics.jsonl").read_text() == '{"step": 7, "x": 0}\n'  # it has saved
    assert cloud.is_clean()


def test_a_slice_from_before_is_deleted_where_the_code_cannot_be_shipped(cloud):
    assert cloud.launch("--keep")[0] == 0 and not cloud.is_clean()
    full = "[[ $target != *.tar.gz ]] || refuse 'no space'"
    (cloud.clone / "configs/mine.py").write_text("changed = True\n")
    status, out = cloud.launch(ON_WRITE=full)
    assert status == 1 and "could not copy the code to" in out and cloud.is_clean()
