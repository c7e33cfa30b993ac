"""A command from its launch to its end: attempts, preemptions, failures, Ctrl-C."""

import hashlib
import json
import re
import shlex
import signal

import pytest

from tests.processes import wait_for
from tests.tools.cloud.stand_in import TRAIN, UNTIL_STOPPED


def test_a_run_goes_through_all_hosts_to_its_end_by_the_commands_of_a_dry_run(cloud):
    """Each address in a flag is of the mounted bucket, as of a mixture, whose rows are one flag."""
    (cloud.clone / "configs/mine.py").write_text("changed = True\n")
    rows = "--config.data.mixture=(('json','gs://bucket/x',1),('json','gs://bucket',2))"
    odd = "--config.x=$(touch pwned) '\" \\ *"
    job = "grep changed transformer_jax/configs/mine.py; step 3; status finished"
    flags, command = ["--project=p", "--spot"], [*TRAIN, rows, odd]
    status, plan = cloud.launch("--dry_run", *flags, accelerator="v5e-16", command=command)
    assert status == 0 and cloud.calls() == []
    status, out = cloud.launch(*flags, accelerator="v5e-16", command=command, JOB=job)
    assert status == 0, out
    assert "Done on all hosts." in out and cloud.is_clean()
    # Host 0's output was shown, and the others' is in the bucket.
    (log0, *others) = [path.read_text() for path in sorted(cloud.workdir.glob("launch/*/log-*"))]
    assert log0 in out and len(others) == 3
    for worker, log in enumerate([log0, *others]):
        assert log.startswith(f"host {worker}: tpu,cpu -P -m transformer_jax.main --mode=train ")
        assert f"{odd}\nchanged = True\n" in log
        mount = cloud.folder / f"host-{worker}/bucket"
        assert f"{mount}/runs/a b" in log and "gs://" not in log.partition("\n")[0]
        assert f"(('json','{mount}/x',1),('json','{mount}',2))" in log
    # The code is there under its hash, with what it was made from.
    (archive,) = cloud.workdir.glob("launch/*.tar.gz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.name.partition(".")[0]
    version = archive.with_name(archive.name.replace("tar.gz", "patch")).read_text()
    assert re.match(r"commit [0-9a-f]{40}\n", version) and "+changed = True" in version
    planned = {tuple(shlex.split(line)) for line in plan.splitlines()}
    calls = set()
    for line in cloud.calls():
        line = re.sub(r"--range=\d+-", "--range=0-", re.sub(r"\b\d{19}\b", "ATTEMPT", line))
        calls.add(tuple(shlex.split(line)))
    assert planned == calls


QUOTA = "Quota limit TPUV6EPerProject has been exceeded. Limit: 0. RESOURCE_EXHAUSTED"
OF_QUOTA = ("the quota of the project does not allow it", QUOTA)
FORBIDDEN = "refuse 'HTTPError 403: me does not have storage.objects.create access'"


@pytest.mark.parametrize(
    ("fault", "messages", "slices", "jobs"),
    [
        # Before a slice costs
        ({"ACCOUNT": ""}, ["gcloud auth login"], 0, 0),
        ({"PROJECT": ""}, ["gcloud config set project"], 0, 0),
        ({"ON_WRITE": FORBIDDEN}, ["not allowed: give the account"], 0, 0),
        ({"ON_CREATE": f"refuse '{QUOTA}'"}, OF_QUOTA, 1, 0),
        ({"CREATED": f"FAILED\t{QUOTA}"}, OF_QUOTA, 1, 0),
        # On a host
        ({"ON_READ": FORBIDDEN}, ["host 0: not allowed: give the account"], 1, 1),
        (
            {"PIP_DOES": "echo '[Errno 28] No space left on device' >&2; exit 1"},
            ["host 0: its disk is full"],
            1,
            1,
        ),
    ],
)
def test_what_no_retry_mends_ends_it_at_once_and_leaves_nothing(
    cloud, fault, messages, slices, jobs
):
    status, out = cloud.launch(**fault)
    assert status == 1 and all(message in out for message in messages), out
    assert (len(cloud.calls("create")), len(cloud.calls("ssh"))) == (slices, jobs)
    assert cloud.is_clean()


@pytest.mark.long
def test_a_preempted_slice_is_made_again_as_often_as_it_takes(cloud):
    lose = 'echo SUSPENDED >"$(echo "$CLOUD"/requests/*)"; '
    lose += 'echo PREEMPTED >"$(echo "$CLOUD"/slices/*)"'
    job = f"step $attempt; [[ $attempt -gt 3 ]] || {{ status running; {lose}; sleep 60; }}"
    status, out = cloud.launch("--spot", "--max_failures=0", JOB=job)
    assert status == 0 and out.count("Preempted") == 3
    assert len(cloud.calls("create")) == len(cloud.calls("delete")) == 4
    # All attempts worked in the same folder.
    lines = (cloud.workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert cloud.is_clean()


RESUMED = """case $attempt in
    1) status preempted; step 900; exit 143 ;;
    2) echo Unable to initialize backend tpu; exit 1 ;;
    *) step 1000; status finished ;;
esac"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("flag", "job", "said"),
    [
        (
            "--max_failures=0",
            "step 1; status preempted; [[ $attempt -gt 1 ]] || exit 143",
            "Preempted at step 1: ",
        ),
        (
            "--max_failures=2",
            "status failed; step $attempt; [[ $attempt -gt 2 ]] || exit 1",
            "It failed at step 2: host 0 ended with 1\n",
        ),
        ("--max_failures=1", RESUMED, "It failed at step 900: host 0 ended with 1\n"),
        (
            "--hang_minutes=0.08",
            "status running; step 4; [[ $attempt -gt 1 ]] || sleep 1000",
            "It hung at step 4: no output for 0.08 minutes\nContinuing from the last checkpoint.",
        ),
    ],
)
def test_what_ends_on_the_way_continues_on_the_same_slice(cloud, flag, job, said):
    status, out = cloud.launch(flag, JOB=job)
    assert status == 0 and said in out, out
    assert len(cloud.calls("create")) == 1 and cloud.is_clean()


@pytest.mark.long
def test_a_sweep_is_tried_again_whatever_its_folder_says(cloud):
    command = ("experiment", "question", "--runs_dir=gs://bucket/runs/a b")
    job = "case $attempt in 1|2) echo a run has failed; exit 1 ;; 3) sleep 1000 ;; esac"
    flags = ["--hang_minutes=0.08"]
    status, out = cloud.launch(*flags, command=command, JOB=job)
    assert status == 0 and out.count("It failed at step -") == 2 and "It hung at" in out, out
    status, out = cloud.launch("--max_failures=1", command=command, JOB="exit 1")
    assert status == 1 and "That makes 2, and --max_failures allows no more." in out


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "attempts", "message"),
    [
        ("status failed; step 5; exit 1", 2, "second time at this step"),
        ("status failed; step $attempt; exit 1", 4, "--max_failures allows no more"),
        ("echo 'error: there is no such config'; exit 1", 1, "error: there is no such config"),
        ("step 9; status diverged; exit 1", 1, "It failed at step 9"),
        ("step 9; status failed; echo 'No space left on device'; exit 1", 1, "No space left"),
    ],
)
def test_a_failure_that_would_come_again_ends_it(cloud, job, attempts, message):
    status, out = cloud.launch(JOB=job)
    assert status == 1 and message in out
    assert len((cloud.folder / "attempts-0").read_text().splitlines()) == attempts
    assert len(cloud.calls("create")) == 1 and cloud.is_clean()


def test_ctrl_c_while_it_waits_leaves_no_request_behind(cloud):
    launch = cloud.start(CREATED="WAITING_FOR_RESOURCES")
    wait_for(lambda: len(cloud.calls("describe", "queued-resources")) > 2, launch)
    launch.send_signal(signal.SIGINT)
    assert launch.communicate(timeout=300) and launch.returncode == 130
    assert cloud.is_clean()


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_a_run_that_does_not_end(cloud):
    launch = cloud.start(JOB="trap : TERM; status running; while :; do sleep 0.05; done")
    wait_for(lambda: (cloud.workdir / "results.json").exists(), launch)
    launch.send_signal(signal.SIGINT)
    wait_for(lambda: cloud.calls("ssh", "worker.sh\\ stop"), launch)
    launch.send_signal(signal.SIGINT)
    assert launch.communicate(timeout=300) and launch.returncode == 130
    assert cloud.is_clean()


@pytest.mark.long
def test_a_slice_is_kept_on_demand_and_a_time_limit_ends_it(cloud):
    status, out = cloud.launch("--keep")
    assert status == 0 and "stays (--keep) and costs" in out and not cloud.calls("delete")
    status, out = cloud.launch("--max_hours=0", JOB=UNTIL_STOPPED)
    assert status == 1 and "--max_hours are over" in out and cloud.is_clean()
