"""A sweep on a real Slurm of one node, whose daemons live in the test's temporary folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from experiments import run
from experiments.harness.executors import slurm
from tests.experiments.harness.runs import job
from tests.processes import wait_for

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"  # which only root's shells search

CONFIG = """
    ClusterName=test
    SlurmctldHost={host}
    SlurmctldPort={controller}
    SlurmdPort={daemon}
    AuthType=auth/munge
    AuthInfo=socket={folder}/munge.socket
    SlurmUser=root
    StateSaveLocation={folder}/state
    SlurmdSpoolDir={folder}/spool
    SlurmctldPidFile={folder}/slurmctld.pid
    SlurmdPidFile={folder}/slurmd.pid
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    SelectType=select/cons_tres
    SelectTypeParameters=CR_CPU
    PreemptType=preempt/partition_prio
    PreemptMode=REQUEUE
    ReturnToService=2
    SchedulerParameters=batch_sched_delay=0,sched_interval=1,requeue_delay=0
    NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
    PartitionName=normal Nodes={host} Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE
    PartitionName=urgent Nodes={host} PriorityTier=2 MaxTime=INFINITE
"""


def _call(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm that runs; its folder."""
    if os.geteuid() or not all(shutil.which(name, path=PATH) for name in DAEMONS):
        pytest.skip("needs root, and Debian's packages slurm-wlm and munge")
    folder = tmp_path_factory.mktemp("slurm")
    host = socket.gethostname().partition(".")[0]
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = {"controller": one.getsockname()[1], "daemon": other.getsockname()[1]}
    config = textwrap.dedent(CONFIG).format(folder=folder, host=host, **ports)
    (folder / "slurm.conf").write_text(config)
    (folder / "cgroup.conf").write_text("")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    files = (f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed"))
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files]
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PATH", PATH)
        for name, *flags in (munge, ("slurmctld", "-D"), ("slurmd", "-D")):
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            # Ends with the test, even where that is killed.
            command = ["setpriv", "--pdeathsig=KILL", name, *flags]
            daemon = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(daemon.terminate)
            if name == "munged":
                wait_for((folder / "munge.socket").exists)
        wait_for(lambda: "idle" in _call("sinfo", "--noheader", "--format=%T"))
        yield folder
        _call("scancel", "--user=root")
        wait_for(lambda: not _call("squeue", "--noheader"))


def _hurry() -> None:
    """Lets tasks begin that Slurm has put back: it waits for two minutes otherwise.

    Not within a second, in which Slurm holds the new start for the revoked one and fails it. So
    not those, either, that wait for their first start: they may be put back within the pause.
    """
    pending = ("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %r")
    tasks = [line.split()[0] for line in _call(*pending).splitlines() if "BeginTime" in line]
    time.sleep(2)
    for task in tasks:
        subprocess.run(["scontrol", "update", f"JobId={task}", "StartTime=now"], check=False)


# In place of a run: each line of its file says how its next start goes. The last one is "end".
TASK = """
for id; do :; done
id=${id#--run=}
cd "$FOLDER"
how=$(head -n 1 "$id.plan")
sed -i 1d "$id.plan"
echo "$how" >>"$id.story"
case $how in
    fail) exit 1 ;;
    save) trap 'exit 143' TERM ;;
    time) kill -USR1 $$ ;;
    end) echo '{"rows": []}' >"$id/measurements.json"; exit ;;
esac
while :; do sleep 0.05; done
"""


@pytest.mark.long
def test_what_ends_a_task_says_whether_it_is_requeued(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.1)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    plans = [
        "save end",  # preempted, saves within the grace time
        "die end",  # preempted before it can save
        "time end",  # told that its time is up
        "fail",
        "die",  # cancelled
    ]
    jobs = [job(tmp_path, seed, train=False, measure={}) for seed in range(len(plans))]
    for each, plan in zip(jobs, plans, strict=True):
        each.workdir.mkdir()
        (tmp_path / f"{each.id}.plan").write_text("\n".join(plan.split()) + "\n")
    (tmp_path / "task.sh").write_text(TASK)

    def story(job):
        path = tmp_path / f"{job.id}.story"
        return path.read_text().split() if path.exists() else []

    def interfere():
        wait_for(lambda: story(jobs[0]) and story(jobs[1]))
        _call("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
        while not done.is_set():
            _hurry()
            if story(jobs[4]):
                names = _call("squeue", "--noheader", "--array", "--format=%i").split()
                subprocess.run(["scancel", *(name for name in names if name.endswith("_4"))])

    done = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(interfere)
        command = ["bash", str(tmp_path / "task.sh")]
        slurm.run_all(jobs, command, tmp_path / "home", at_once=None, options=[])
        done.set()
        other.result()
    assert [job for job in jobs if job.commands()] == [jobs[3], jobs[4]]
    assert [" ".join(story(job)) for job in jobs] == plans


# Keeps what is submitted: a line with its array, its comment, and what else it was given.
SBATCH = """#!/bin/sh
cat >/dev/null
echo "$*" >>"$QUEUE.submitted"
for flag; do case $flag in --comment=*) comment=${flag#*=} ;; esac; done
number=0
for id in $comment; do echo "$number ${COMMENT-$comment}" >>"$QUEUE"; number=$((number + 1)); done
"""


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """The file that stands for the queue of a stand-in for Slurm, in which a call takes a task."""
    queue = tmp_path / "queue"
    squeue = '#!/bin/sh\ncat "${SQUEUE_ME-$QUEUE}" 2>&-\ntest ! -e "$QUEUE" || sed -i 1d "$QUEUE"\n'
    (tmp_path / "bin").mkdir()
    for name, script in (("sbatch", SBATCH), ("squeue", squeue)):
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("QUEUE", str(queue))
    monkeypatch.setenv("SQUEUE_ME", "0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.0)
    return queue


def test_what_is_in_the_queue_is_not_submitted_again(queue, tmp_path):
    jobs = [job(tmp_path, seed) for seed in range(3)]
    ids = f"{jobs[0].id} {jobs[1].id}"
    queue.write_text(f"0 {ids}\n1 {ids}\n")
    slurm.run_all(jobs, ["run"], tmp_path, at_once=None, options=[])
    (submitted,) = queue.with_suffix(".submitted").read_text().splitlines()
    assert f" --comment={jobs[2].id} --array=0-0 " in submitted


@pytest.mark.parametrize(
    "options",
    ["--comment=acct", "--comm acct", "--array=0-7", "-a 0-7", "-a0", "--job-name=mine", "-Jmine"]
    + ["-J mine", "--job=mine", "--chdir=/tmp", "-D/tmp", "--test-only", "-M all", "--wrap=x"],
)
def test_options_that_would_hide_tasks_are_refused(queue, tmp_path, options):
    """Otherwise the queue looks empty, and the same command submits the same runs again."""
    words = ["--partition=gpu", *options.split()]
    with pytest.raises(ValueError, match=f"--options: {words[1]} would hide the tasks"):
        slurm.run_all([job(tmp_path)], ["run"], tmp_path, at_once=None, options=words)
    assert not queue.with_suffix(".submitted").exists()


def test_a_comment_that_was_changed_is_told(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("COMMENT", "reviewed")
    jobs = [job(tmp_path, seed) for seed in range(2)]
    with pytest.raises(ValueError, match="comment was changed .1 reviewed.: .*scancel --name="):
        slurm.run_all(jobs, ["run"], tmp_path, at_once=None, options=[])


@pytest.mark.parametrize("options", ["--gres=gpu:2", "--gres gpu:l4", "--gpus-per-node=1", "-G1"])
def test_gpus_that_tasks_would_not_use_are_refused(command, tmp_path, monkeypatch, capsys, options):
    """A login node without a GPU passes its JAX_PLATFORMS on, and all would run on the CPU."""
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = "asks for GPUs, but tasks get JAX_PLATFORMS=cpu"
    for platforms, flag in (("cpu", options), ("cpu", "--time=1:00"), ("cuda,cpu", options)):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        flags = command("measured", "--executor=slurm", f"--options=--partition=gpu {flag}")
        assert run.main(flags) == 1
        assert (refused in capsys.readouterr().err) == ((platforms, flag) == ("cpu", options))
