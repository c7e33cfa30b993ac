"""`launch.sh tpu` against a stand-in cloud: gcloud, gcsfuse and Python are scripts on PATH.

launch.sh, tpu.py and tpu_worker.sh are the real ones. The stand-in's hosts are folders, on which it
really runs what is sent to them; its bucket is a folder; its slices are files that hold a state.
What goes wrong is told to it by environment variables, as shell code.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_jax.cloud import launcher as tpu

ROOT = Path(__file__).parents[2]

# `storage` on the folder $CLOUD/objects, `ssh` into the folders $CLOUD/host-N, and slices as the
# files $CLOUD/requests/NAME and $CLOUD/slices/NAME. $ON_CREATE, $ON_DESCRIBE, $ON_SSH and $ON_WRITE
# are run before the answer is given, and may exit with another one.
GCLOUD = r"""#!/usr/bin/env bash
echo "$(printf '%q ' gcloud "$@")" >>"$CLOUD/calls${WORKER+-of-hosts}"
refuse() { echo "ERROR: (gcloud) $1" >&2; exit 1; }
count() { echo >>"$CLOUD/count-$1"; wc -l <"$CLOUD/count-$1"; }  # how often it was asked
flag() { local a; for a in "${all[@]}"; do [[ $a != --$1=* ]] || echo "${a#*=}"; done; }
path() { echo "$CLOUD/objects/${1#gs://}"; }
all=("$@") words=()
for argument; do [[ $argument == --* ]] || words+=("$argument"); done
[[ ${words[0]} != alpha ]] || words=("${words[@]:1}")
case "${words[*]}" in
    "auth list") echo "${ACCOUNT-me@example.com}" ;;
    "config get-value project") echo "${PROJECT-a-project}" ;;
    "storage buckets describe "*)
        eval "${ON_BUCKET-}"
        echo "${BUCKET_REGION-us-west4}" ;;
    "storage cp "*)
        source=${words[2]} target=$(path "${words[3]}")
        if [[ ${words[2]} == gs://* ]]; then
            eval "${ON_READ-}"
            cp "$(path "$source")" "${words[3]}"
            exit
        fi
        eval "${ON_WRITE-}"
        mkdir -p "$(dirname "$target")"
        [[ -z $(flag if-generation-match) || ! -e $target ]] || refuse "HTTPError 412"
        cat -- "${source/#-//dev/stdin}" >"$target.new$$" && mv "$target.new$$" "$target" ;;
    "storage cat "*)
        range=$(flag range)
        shopt -s nullglob
        IFS= files=($(path "${words[2]}"))
        [[ -e ${files[0]-} ]] || refuse "the following URLs matched no objects: ${words[2]}"
        [[ $range != *- ]] || range=+$((${range%-} + 1))
        cat "${files[@]}" | tail -c "${range:-+1}" ;;
    "storage rm "*) rm "$(path "${words[2]}")" ;;
    "compute tpus "*" create "*)
        eval "${ON_CREATE-}"
        slice=${words[4]} state=${CREATED-ACTIVE}
        if [[ ${words[2]} == queued-resources ]]; then
            [[ ! -e $CLOUD/requests/$slice ]] || refuse "ALREADY_EXISTS"
            echo "$state" >"$CLOUD/requests/$slice"
        fi
        [[ $state != ACTIVE ]] || echo READY >"$CLOUD/slices/$slice" ;;
    "compute tpus "*" describe "*)
        slice=${words[4]} folder=slices
        eval "${ON_DESCRIBE-}"
        [[ ${words[2]} == tpu-vm ]] || folder=requests
        cat "$CLOUD/$folder/$slice" 2>/dev/null || refuse "NOT_FOUND: $slice" ;;
    "compute tpus "*" delete "*)
        slice=${words[4]} folder=slices
        eval "${ON_DELETE-}"
        [[ ${words[2]} == tpu-vm ]] || folder=requests
        [[ -e $CLOUD/$folder/$slice ]] || refuse "NOT_FOUND: $slice"
        for pid in $(cat "$CLOUD"/host-*/transformer_jax/pid 2>/dev/null); do
            kill -KILL -- "-$pid" 2>/dev/null
        done
        rm -rf "$CLOUD/$folder/$slice" "$CLOUD/slices/$slice" "$CLOUD"/host-* ;;
    "compute tpus tpu-vm ssh "*)
        worker=$(flag worker)
        eval "${ON_SSH-}"
        [[ $(cat "$CLOUD/slices/${words[4]}" 2>/dev/null) == READY ]] || refuse "ssh: no route"
        mkdir -p "$CLOUD/host-$worker" && cd "$CLOUD/host-$worker"
        HOME=$PWD WORKER=$worker exec bash -c "$(flag command)" ;;
    *) refuse "the stand-in does not know: $*" ;;
esac
"""
KEYGEN = r"""#!/usr/bin/env bash
[[ $1 == -f && $3 == -R ]] && sed -i "/^$4 /d" "$2"
"""
GCSFUSE = r"""#!/usr/bin/env bash
rmdir "${@: -1}" 2>/dev/null || rm -f "${@: -1}"
mkdir -p "$CLOUD/objects/${@: -2:1}" && ln -s "$CLOUD/objects/${@: -2:1}" "${@: -1}"
"""
# Makes an environment out of a copy of itself; as the job, a run or a sweep, it runs $JOB.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    "-c import ensurepip") ;;
    "-m venv --clear "*)
        rm -rf "${{@: -1}}" && mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    *"-m pip "*) eval "${{PIP_DOES-}}" ;;
    *"-m transformer_jax.main "* | *"-m experiments.run "*)
        for argument; do [[ $argument != --@(workdir|runs_dir)=* ]] || run=${{argument#*=}}; done
        mkdir -p "$run"
        echo "host $WORKER: $JAX_PLATFORMS $*"
        first() {{ [[ $WORKER == 0 ]]; }}
        step() {{ ! first || echo "{{\\"step\\": $1, \\"x\\": 0}}" >>"$run/metrics.jsonl"; }}
        status() {{ ! first || echo "{{ \\"status\\": \\"$1\\" }}" >"$run/results.json"; }}
        attempt=$(echo >>"$CLOUD/attempts-$WORKER"; wc -l <"$CLOUD/attempts-$WORKER")
        eval "${{JOB-}}" ;;
    *) exec '{sys.executable}' "$@" ;;
esac
"""
# Trains until the test or a signal ends it.
UNTIL_STOPPED = """
    trap 'status preempted; step 7; exit 143' TERM
    status running
    while :; do sleep 0.05; done
"""
TRAIN = ("train", "--config=configs/mine.py", "--workdir=gs://bucket/runs/a b")


class Cloud:
    """A clone of the repository, and the stand-ins."""

    def __init__(self, root: Path):
        self.clone = root / "a clone"
        self.folder = root / "cloud"
        self.workdir = self.folder / "objects/bucket/runs/a b"
        for name in ("slices", "requests", "objects"):
            (self.folder / name).mkdir(parents=True)
        binaries = root / "bin"
        binaries.mkdir()
        scripts = {"gcloud": GCLOUD, "gcsfuse": GCSFUSE, "ssh-keygen": KEYGEN}
        scripts["python3.11"] = PYTHON
        for name, script in scripts.items():
            (binaries / name).write_text(script)
            (binaries / name).chmod(0o755)
        (self.clone / "transformer_jax/cloud").mkdir(parents=True)
        (self.clone / "configs").mkdir()
        for name in (
            "launch.sh",
            "transformer_jax/cloud/launcher.py",
            "transformer_jax/cloud/worker.sh",
        ):
            shutil.copy(ROOT / name, self.clone / name)
        for name in ("pyproject.toml", "constraints.txt", "configs/mine.py"):
            (self.clone / name).touch()
        (self.clone / ".gitignore").write_text("/.venv*\n")
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
            subprocess.run(["git", "-C", self.clone, *identity, *arguments], check=True)
        self.started: list[subprocess.Popen[str]] = []
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "CLOUD": str(self.folder),
        }

    def start(self, *flags: str, accelerator="v6e-8", command=TRAIN, **environment: str):
        """v6e-8 has one host, v5e-16 four."""
        common = ["--poll_seconds=0.05", f"--accelerator={accelerator}", "--zone=us-west4-a"]
        process = subprocess.Popen(
            [self.clone / "launch.sh", "tpu", *common, *flags, *command],
            cwd=self.clone.parent,
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def launch(self, *flags: str, **arguments) -> tuple[int, str]:
        """Returns the exit status, and what was printed."""
        process = self.start(*flags, **arguments)
        out, _ = process.communicate(timeout=300)
        return process.returncode, out

    def calls(self, *words: str) -> list[str]:
        """The calls of gcloud that hold all these words."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if all(word in line for word in words)]

    def is_clean(self) -> bool:
        """Whether nothing is left that costs, and the work directory is free again."""
        left = [*(self.folder / "slices").iterdir(), *(self.folder / "requests").iterdir()]
        return not left and not (self.workdir / "launch/lease").exists()

    def close(self) -> None:
        """Ends what a failed test has left running."""
        for process in self.started:
            process.kill()
            process.wait()
        for path in self.folder.glob("host-*/transformer_jax/pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def cloud(tmp_path):
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.close()


def _wait_for(condition, process):
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_run_goes_through_all_hosts_to_its_end(cloud):
    (cloud.clone / "configs/mine.py").write_text("changed = True\n")
    odd = "--config.x=$(touch pwned) '\" \\ *"
    job = "grep changed configs/mine.py; step 3; status finished"
    status, out = cloud.launch(accelerator="v5e-16", command=[*TRAIN, odd], JOB=job)
    assert status == 0, out
    assert "Done on all hosts." in out and cloud.is_clean()
    # Host 0's output was shown, and the others' is in the bucket.
    (log0, *others) = [path.read_text() for path in sorted(cloud.workdir.glob("launch/*/log-*"))]
    assert log0 in out and len(others) == 3
    for worker, log in enumerate([log0, *others]):
        assert log.startswith(f"host {worker}: tpu,cpu -P -m transformer_jax.main --mode=train ")
        assert f"{odd}\nchanged = True\n" in log
        assert f"host-{worker}/bucket/runs/a b" in log
    # The code is there under its hash, with what it was made from.
    (archive,) = cloud.workdir.glob("launch/*.tar.gz")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == archive.name.partition(".")[0]
    version = archive.with_name(archive.name.replace("tar.gz", "patch")).read_text()
    assert re.match(r"commit [0-9a-f]{40}\n", version) and "+changed = True" in version


def test_a_dry_run_prints_every_command_of_a_launch(cloud):
    flags, where = ["--project=p", "--spot"], {"accelerator": "v5e-16"}
    status, out = cloud.launch("--dry_run", *flags, **where)
    assert status == 0 and cloud.calls() == []
    planned = {tuple(shlex.split(line)) for line in out.splitlines()}
    assert cloud.launch(*flags, **where)[0] == 0
    made = {
        tuple(
            re.sub(r"--range=\d+-", "--range=0-", re.sub(r"\b\d{19}\b", "ATTEMPT", word))
            for word in call
        )
        for call in map(shlex.split, cloud.calls())
    }
    assert planned == made


@pytest.mark.parametrize(
    ("flags", "command", "requested"),
    [
        ([], "queued-resources create", "--async"),
        (["--spot"], "queued-resources create", "--spot"),
        (["--reserved"], "queued-resources create", "--reserved"),
        (
            ["--flex_start=2h"],
            "gcloud alpha compute tpus queued-resources",
            "--max-run-duration=2h",
        ),
        (["--now", "--spot"], "tpu-vm create", "--version=v2-alpha-tpuv6e --spot"),
        (["--create=--network=a --tags=b,c"], "create", "--network=a --tags=b,c"),
    ],
)
def test_the_kinds_of_capacity(cloud, flags, command, requested):
    _, out = cloud.launch("--dry_run", "--project=p", *flags)
    (create,) = [line for line in out.splitlines() if " create " in line]
    assert command in create and set(requested.split()) <= set(create.split())


@pytest.mark.parametrize(
    ("accelerator", "name", "runtime", "hosts"),
    [
        ("v4-8", "v4-8", "tpu-ubuntu2204-base", 1),
        ("v4-32", "v4-32", "tpu-ubuntu2204-base", 4),
        ("v5e-8", "v5litepod-8", "v2-alpha-tpuv5-lite", 1),
        ("v5litepod-256", "v5litepod-256", "v2-alpha-tpuv5-lite", 64),
        ("v5p-256", "v5p-256", "v2-alpha-tpuv5", 32),
        ("v6e-16", "v6e-16", "v2-alpha-tpuv6e", 4),
    ],
)
def test_accelerators(accelerator, name, runtime, hosts, tmp_path, monkeypatch):
    launch, _ = tpu._parse(_arguments(accelerator))
    assert (launch.accelerator, launch.runtime, launch.hosts) == (name, runtime, hosts)


def _arguments(accelerator="v6e-8", *, dry_run=True, command=("replay", "--workdir=gs://b/a")):
    flags = [f"--accelerator={accelerator}", "--zone=us-west4-a", "--project=p"]
    return [*flags, *["--dry_run"] * dry_run, *command]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (_arguments("tpu7x-16"), "tpu7x-16: .* through Compute Engine and GKE alone"),
        (_arguments("v3-8"), "--accelerator=v3-8: expected one slice of v4, v5e, v5p, v6e"),
        (_arguments("2xv5e-16"), "--accelerator=2xv5e-16: expected one slice"),
        (_arguments("v5p-7"), "there is no slice of 7"),
        (_arguments(command=()), "give a command of launch.sh"),
        (
            _arguments(command=("train", "--workdir=runs/a")),
            "expected --workdir=gs://BUCKET/FOLDER",
        ),
        (
            _arguments(command=("train", "--workdir=gs://b")),
            "expected --workdir=gs://BUCKET/FOLDER",
        ),
        (
            _arguments(command=("train", "--workdir=gs://b/a", "--config=/etc/hosts")),
            "--config=/etc/hosts: the file has to be in",
        ),
        (_arguments(dry_run=False), "found no gcloud on PATH"),
    ],
)
def test_mistakes_are_refused_at_once(arguments, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tpu.main(arguments) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ({"ACCOUNT": ""}, "gcloud auth login"),
        ({"PROJECT": ""}, "gcloud config set project"),
        # The bucket is forbidden: to the account here.
        (
            {"ON_WRITE": "refuse 'HTTPError 403: me does not have storage.objects.create access'"},
            "not allowed: give the account",
        ),
    ],
)
def test_what_is_lacking_is_told_before_a_slice_costs(cloud, lacks, message):
    status, out = cloud.launch(**lacks)
    assert status == 1 and message in out
    assert not cloud.calls("create")


def test_the_bucket_need_not_tell_where_it_is(cloud):
    status, out = cloud.launch(BUCKET_REGION="eu")
    assert status == 0 and "Note: gs://bucket is in eu, the slice in us-west4" in out
    forbidden = "refuse 'HTTPError 403: me does not have storage.buckets.get access'"
    status, out = cloud.launch(ON_BUCKET=forbidden)
    assert status == 0 and "Note:" not in out
    status, out = cloud.launch(ON_BUCKET="refuse 'HTTPError 404: no such bucket'")
    assert status == 1 and "gs://bucket: there is no such thing" in out
    assert len(cloud.calls("create")) == 2


def test_no_capacity_is_asked_for_again(cloud):
    refusal = "There is no more capacity in the zone; RESOURCE_EXHAUSTED"
    create = f'[[ $(count create) -gt 2 ]] || refuse "{refusal}"'
    status, out = cloud.launch("--now", ON_CREATE=create)
    assert status == 0 and len(cloud.calls("create")) == 3
    assert out.count("No capacity now") == 2 and cloud.is_clean()


QUOTA = "Quota limit TPUV6EPerProject has been exceeded. Limit: 0. RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "refusal", [{"ON_CREATE": f"refuse '{QUOTA}'"}, {"CREATED": f"FAILED\t{QUOTA}"}]
)
def test_a_quota_ends_it(cloud, refusal):
    status, out = cloud.launch(**refusal)
    assert status == 1 and len(cloud.calls("create")) == 1
    assert "the quota of the project does not allow it" in out and QUOTA in out
    assert cloud.is_clean()


def test_a_queue_is_waited_in_and_left_after_the_longest_wait(cloud):
    waiting = {"CREATED": "WAITING_FOR_RESOURCES"}
    come = 'echo ACTIVE >"$CLOUD/requests/$slice"; echo READY >"$CLOUD/slices/$slice"'
    status, out = cloud.launch(ON_DESCRIBE=f"[[ $(count look) != 8 ]] || {{ {come}; }}", **waiting)
    assert status == 0 and "WAITING_FOR_RESOURCES, after 0 minutes" in out
    status, out = cloud.launch("--max_wait_hours=0.0001", **waiting)
    assert status == 1 and "no v6e-8 in us-west4-a within 0.0001 hours" in out
    assert cloud.is_clean()


def test_a_preempted_slice_is_made_again_as_often_as_it_takes(cloud):
    lose = (
        'echo SUSPENDED >"$(echo "$CLOUD"/requests/*)"; echo PREEMPTED >"$(echo "$CLOUD"/slices/*)"'
    )
    job = f"step $attempt; [[ $attempt -gt 3 ]] || {{ status running; {lose}; sleep 60; }}"
    status, out = cloud.launch("--spot", "--max_failures=0", JOB=job)
    assert status == 0 and out.count("Preempted") == 3
    assert len(cloud.calls("create")) == len(cloud.calls("delete")) == 4
    # All attempts worked in the same folder.
    lines = (cloud.workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert cloud.is_clean()


def test_a_run_that_was_told_to_stop_goes_on_on_the_same_slice(cloud):
    job = "step 1; status preempted; [[ $attempt -gt 1 ]] || exit 143"
    status, out = cloud.launch("--max_failures=0", JOB=job)
    assert status == 0 and out.count("Preempted at step 1") == 1
    assert len(cloud.calls("create")) == 1


def test_a_failure_is_tried_again_while_it_gets_further(cloud):
    job = "status failed; step $attempt; [[ $attempt -gt 2 ]] || { echo broken wire; exit 1; }"
    status, out = cloud.launch(accelerator="v5e-16", JOB=job)
    assert status == 0 and out.count("Going on from the last checkpoint.") == 2
    assert "It failed at step 2: host 0 ended with 1" in out and "  broken wire" in out
    assert len(cloud.calls("create")) == 1 and cloud.is_clean()


def test_a_resumed_run_that_fails_before_it_trains_is_tried_again(cloud):
    job = """case $attempt in
        1) status preempted; step 900; exit 143 ;;
        2) echo Unable to initialize backend tpu; exit 1 ;;
        *) step 1000; status finished ;;
    esac"""
    status, out = cloud.launch(JOB=job)
    assert status == 0 and "It failed at step 900: host 0 ended with 1\n" in out, out


def test_a_host_that_fails_while_the_others_save_is_tried_again(cloud):
    job = """
        [[ $attempt == 1 ]] || exit 0
        step 5; status preempted; [[ $WORKER != 2 ]] || exit 1; exit 143
    """
    status, out = cloud.launch(accelerator="v5e-16", JOB=job)
    assert status == 0 and "It failed at step 5: host 2 ended with 1\n" in out, out


def test_a_sweep_is_tried_again_whatever_its_folder_says(cloud):
    command = ("experiment", "question", "--runs_dir=gs://bucket/runs/a b")
    job = "case $attempt in 1|2) echo a run has failed; exit 1 ;; 3) sleep 1000 ;; esac"
    flags = ["--hang_minutes=0.15"]
    status, out = cloud.launch(*flags, command=command, JOB=job)
    assert status == 0 and out.count("It failed at step -") == 2 and "It hung at" in out, out
    status, out = cloud.launch("--max_failures=1", command=command, JOB="exit 1")
    assert status == 1 and "That makes 2, and --max_failures allows no more." in out


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


def test_the_host_that_failed_is_named(cloud):
    job = (
        "status running; step 2; [[ $WORKER != 2 ]] || { echo out of memory; exit 137; }; sleep 60"
    )
    status, out = cloud.launch("--max_failures=0", accelerator="v5e-16", JOB=job)
    assert status == 1 and "host 2 ended with 137\n  host 2: " in out and "  out of memory" in out


def test_a_job_that_hangs_is_started_again(cloud):
    job = "status running; step 4; [[ $attempt -gt 1 ]] || sleep 1000"
    status, out = cloud.launch("--hang_minutes=0.15", JOB=job)
    assert status == 0 and "It hung at step 4: no output for 0.15 minutes" in out
    assert len(cloud.calls("create")) == 1


def test_one_host_that_ssh_does_not_reach_is_tried_again_alone(cloud):
    refusal = "refuse 'ssh: connect to host 10.0.0.3 port 22: Connection refused'"
    ssh = f"[[ $worker != 2 || $(count ssh) -gt 2 ]] || {refusal}"
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=ssh)
    assert status == 0 and out.count("Trying again on host 2: ERROR: (gcloud) ssh: connect") == 2
    assert [len(cloud.calls("ssh", f"--worker={n}")) for n in range(4)] == [1, 1, 3, 1]

    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=f"[[ $worker != 2 ]] || {refusal}")
    assert status == 1 and "could not start on host 2 of 4" in out and "ssh-add" in out
    assert cloud.is_clean()


def test_a_changed_host_key_is_forgotten(cloud, tmp_path):
    known = tmp_path / "known hosts"
    known.write_text("tpu.7-0 ssh-ed25519 old\ntpu.8-0 ssh-ed25519 other\n")
    message = f"""Host key for tpu.7-0 has changed and you have requested strict checking.
Offending ED25519 key in {known}:1
Host key verification failed."""
    status, out = cloud.launch(ON_SSH=f"! grep -q tpu.7-0 '{known}' || refuse '{message}'")
    assert status == 0 and "Trying again on host 0: Host key verification failed." in out
    assert known.read_text() == "tpu.8-0 ssh-ed25519 other\n"


def test_a_bucket_that_hosts_may_not_read_ends_it(cloud):
    refusal = "refuse 'HTTPError 403: service@x does not have storage.objects.get access'"
    status, out = cloud.launch(ON_READ=refusal)
    assert status == 1 and "host 0: not allowed: give the account" in out
    assert len(cloud.calls("ssh")) == 1 and cloud.is_clean()


def test_a_full_disk_ends_it(cloud):
    status, out = cloud.launch(PIP_DOES="echo '[Errno 28] No space left on device' >&2; exit 1")
    assert status == 1 and "host 0: its disk is full" in out
    assert len(cloud.calls("ssh")) == 1 and cloud.is_clean()


def test_a_launch_beside_another_one_is_refused_and_ctrl_c_saves_and_deletes(cloud):
    first = cloud.start(accelerator="v5e-16", JOB=UNTIL_STOPPED)
    _wait_for(lambda: (cloud.workdir / "results.json").exists(), first)
    status, out = cloud.launch(accelerator="v5e-16")
    assert status == 1 and f"is launched already, by process {first.pid} on" in out
    assert first.poll() is None and not cloud.calls("delete")

    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 130 and "Stopping: training saves" in out
    assert "preempted" in (cloud.workdir / "results.json").read_text()
    assert cloud.is_clean()
    assert cloud.launch(JOB="step 8; status finished")[0] == 0


def test_a_lease_shows_signs_of_life_while_a_host_installs(cloud):
    lease, go = cloud.workdir / "launch/lease", cloud.folder / "go"
    wait = "touch $CLOUD/installs; for _ in {1..4000}; do [[ -e $CLOUD/go ]] || sleep 0.05; done"
    launch = cloud.start(PIP_DOES=wait)
    _wait_for((cloud.folder / "installs").exists, launch)
    since = time.time()
    _wait_for(lambda: json.loads(lease.read_text())["time"] > since + 1, launch)
    go.touch()
    assert launch.communicate(timeout=300) and launch.returncode == 0
    assert cloud.is_clean()


def test_a_lease_without_a_sign_of_life_is_taken_over(cloud):
    lease = cloud.workdir / "launch/lease"
    lease.parent.mkdir(parents=True)
    lease.write_text(json.dumps({"host": "gone", "process": 1, "time": time.time() - 3600}))
    status, out = cloud.launch()
    assert status == 0 and "Taking over" in out and cloud.is_clean()


def test_what_a_killed_launcher_left_is_taken_over(cloud):
    once = "[[ $target != */lease || $(count lease) == 1 ]] || exit 0"  # none comes after the kill
    first = cloud.start(JOB=UNTIL_STOPPED, ON_WRITE=once)
    _wait_for(lambda: (cloud.workdir / "results.json").exists(), first)
    first.kill()
    first.communicate()
    (cloud.workdir / "launch/lease").unlink()  # as if long ago
    status, out = cloud.launch(JOB="status finished")
    assert status == 0 and len(cloud.calls("create")) == 1
    assert (cloud.workdir / "metrics.jsonl").read_text() == '{"step": 7, "x": 0}\n'  # it has saved
    assert cloud.is_clean()


def test_ctrl_c_while_it_waits_leaves_no_request_behind(cloud):
    launch = cloud.start(CREATED="WAITING_FOR_RESOURCES")
    _wait_for(lambda: len(cloud.calls("describe", "queued-resources")) > 2, launch)
    launch.send_signal(signal.SIGINT)
    assert launch.communicate(timeout=300) and launch.returncode == 130
    assert cloud.is_clean()


def test_a_second_ctrl_c_does_not_wait_for_a_run_that_does_not_end(cloud):
    launch = cloud.start(JOB="trap : TERM; status running; while :; do sleep 0.05; done")
    _wait_for(lambda: (cloud.workdir / "results.json").exists(), launch)
    launch.send_signal(signal.SIGINT)
    _wait_for(lambda: cloud.calls("ssh", "tpu_worker.sh\\ stop"), launch)
    launch.send_signal(signal.SIGINT)
    assert launch.communicate(timeout=300) and launch.returncode == 130
    assert cloud.is_clean()


def test_a_deletion_is_tried_until_it_is_seen(cloud):
    status, _ = cloud.launch(ON_DELETE='[[ $(count delete) -gt 2 ]] || refuse "internal error"')
    assert status == 0 and len(cloud.calls("delete")) == 3 and cloud.is_clean()
    status, out = cloud.launch(ON_DELETE='refuse "internal error"')
    assert status == 1 and "may still be there and cost money" in out
    assert "gcloud compute tpus queued-resources delete" in out.splitlines()[-2]
    assert "gcloud compute tpus tpu-vm delete" in out.splitlines()[-1]


def test_a_slice_from_before_is_deleted_however_it_was_asked_for(cloud):
    assert cloud.launch("--now", "--keep")[0] == 0
    status, out = cloud.launch()
    assert status == 0 and "was without its request: deleting it" in out and cloud.is_clean()


def test_a_slice_from_before_is_deleted_where_the_code_cannot_be_shipped(cloud):
    assert cloud.launch("--keep")[0] == 0 and not cloud.is_clean()
    full = "[[ $target != *.tar.gz ]] || refuse 'no space'"
    (cloud.clone / "configs/mine.py").write_text("changed = True\n")
    status, out = cloud.launch(ON_WRITE=full)
    assert status == 1 and "could not copy the code to" in out and cloud.is_clean()


def test_hosts_on_which_nothing_was_started_are_noticed(cloud):
    ssh = "[[ $worker == 0 || $(count others) -gt 3 ]] || exit 0"
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH=ssh)
    assert status == 0 and "Trying again on host 1, 2, 3: its ssh ended well, but nothing" in out
    attempts = [(cloud.folder / f"attempts-{n}").read_text() for n in range(4)]
    assert attempts == ["\n"] * 4
    status, out = cloud.launch(accelerator="v5e-16", ON_SSH="[[ $worker == 0 ]] || exit 0")
    assert status == 1 and "could not start on host 1, 2, 3 of 4" in out
    assert cloud.is_clean()


def test_a_slice_is_kept_on_demand_and_a_time_limit_ends_it(cloud):
    status, out = cloud.launch("--keep")
    assert status == 0 and "stays (--keep) and costs" in out and not cloud.calls("delete")
    status, out = cloud.launch("--max_hours=0", JOB=UNTIL_STOPPED)
    assert status == 1 and "--max_hours are over" in out and cloud.is_clean()
