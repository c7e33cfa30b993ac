"""The command on the hosts of a slice: started, followed and stopped."""

import re
import shlex
import signal
import subprocess
import time
from typing import Literal, NamedTuple

from transformer_jax.tools.cloud import slices
from transformer_jax.tools.cloud.bucket import Code
from transformer_jax.tools.cloud.gcloud import DISK_FULL, Answer, call, call_all, raise_if_hopeless
from transformer_jax.tools.cloud.launch import Launch, Stop, backoff, pause, say

_SSH_AT_ONCE = 16
_SSH_TRIES = 5
_FAILED_POLLS = 5  # how long the launcher waits for the other hosts, once one has failed
_LOG_LINES = 15  # shown of a failed host


class Ended(NamedTuple):
    """How an attempt ended. hopeless: it would fail so again. progress: it wrote some output."""

    how: Literal["done", "preempted", "failed", "hung"]
    detail: str = ""
    hopeless: bool = False
    progress: bool = False


class Exit(NamedTuple):
    """How the job ended on a host: exit status, and status of the run."""

    worker: int
    code: int
    status: str


def ssh_command(launch: Launch, worker: int, script: str) -> list[str]:
    """Runs a script on a host; asks nothing, so that it cannot wait for a passphrase."""
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", launch.name, *launch.place]
    return [*ssh, f"--worker={worker}", "--ssh-flag=-oBatchMode=yes", f"--command={script}"]


def start_script(launch: Launch, code: Code, worker: int, label: str) -> str:
    """A host fetches the code, and then sees to it that exactly this job runs."""
    folder, archive = f"transformer_jax/{code.hash}", f"{code.hash}.tar.gz"
    source = f"{launch.folder}/{archive}"
    job = [launch.folder, str(worker), label, str(launch.poll_seconds), *launch.command]
    return " && ".join(
        (
            f"mkdir -p {folder}",
            f"cd {folder}",
            shlex.join(["gcloud", "storage", "cp", "--quiet", source, archive]),
            f"echo '{code.hash}  {archive}' | sha256sum --check --quiet",
            f"tar -xzf {archive}",
            shlex.join(["bash", "transformer_jax/tools/cloud/worker.sh", "start", *job]),
        )
    )


def start(launch: Launch, code: Code, label: str) -> bool:
    """Starts the job on every host; False if the slice was lost meanwhile.

    A host that cannot be reached is tried again, alone. Raises Stop where that does not help.
    """
    say(f"Installing and starting on {launch.hosts} host{'s' * (launch.hosts != 1)} ...")
    workers, trial = list(range(launch.hosts)), 0
    while True:
        scripts = {worker: start_script(launch, code, worker, label) for worker in workers}
        answers = _ssh_all(launch, scripts)
        workers = [worker for worker in workers if f"started {worker}" not in answers[worker].out]
        if not workers:
            return True
        if slices.look(launch).word != "ready":
            return False
        for worker in workers:
            raise_if_hopeless(answers[worker].error, f"host {worker}")
            _forget_changed_key(answers[worker].error)
        trial += 1
        error = answers[workers[0]].error or "its ssh ended well, but nothing was started"
        named = ", ".join(map(str, workers))
        if trial == _SSH_TRIES:
            raise Stop(
                f"could not start on host {named} of {launch.hosts}: {error}\n"
                "If ssh is denied: ssh-add ~/.ssh/google_compute_engine, or set up OS Login"
            )
        say(f"Trying again on host {named}: {error.splitlines()[-1]}")
        pause(launch, backoff(launch, trial))


def stop(launch: Launch, code: Code) -> None:
    """Ends the job on every host, which saves."""
    worker = f"transformer_jax/{code.hash}/transformer_jax/tools/cloud/worker.sh"
    _ssh_all(launch, dict.fromkeys(range(launch.hosts), shlex.join(["bash", worker, "stop"])))


def follow(launch: Launch, label: str) -> Ended:
    """Shows host 0's output until the job has ended or hangs, or the slice is lost."""
    log, offset, heard, since_failure = f"{launch.folder}/{label}/log-0", 0, time.monotonic(), 0
    while True:
        exits = _exits(launch, label)  # before the log, which is whole once they are there
        answer = call(["gcloud", "storage", "cat", f"--range={offset}-", log], strip=False)
        if answer.ok and answer.out:
            print(answer.out, end="", flush=True)
            offset, heard = offset + answer.size, time.monotonic()
        failed = [exit for exit in exits if exit.code]
        if len(exits) == launch.hosts and not failed:
            return Ended("done")
        since_failure += bool(failed)
        lost = slices.look(launch).word in ("lost", "absent")
        hangs = time.monotonic() - heard > launch.hang_minutes * 60
        if len(exits) == launch.hosts or since_failure > _FAILED_POLLS or lost or hangs:
            break
        pause(launch, launch.poll_seconds)
    by_themselves = [exit for exit in failed if exit.code != 128 + signal.SIGTERM]
    if lost or (failed and not by_themselves) or slices.look(launch).word != "ready":
        return Ended("preempted", progress=offset > 0)
    if not failed:
        return Ended("hung", f"no output for {launch.hang_minutes:g} minutes")
    first, writer = min(by_themselves), min(exits)  # host 0 writes the work directory
    # A run that has never made a step was asked for by mistake; "diverged" is a result.
    mistaken = launch.logs_steps and writer.status == "none" and last_step(launch) == "-"
    tail = call(["gcloud", "storage", "cat", f"{launch.folder}/{label}/log-{first.worker}"]).out
    lines = [line for line in tail.replace("\r", "\n").splitlines() if line.strip()]
    return Ended(
        "failed",
        f"host {first.worker} ended with {first.code}\n"
        + "\n".join(f"  {line}" for line in lines[-_LOG_LINES:]),
        hopeless=mistaken or writer.status == "diverged" or re.search(DISK_FULL, tail) is not None,
        progress=offset > 0,
    )


def last_step(launch: Launch) -> str:
    """The last step that was logged in the bucket, which outlives the slice; "-": none was."""
    metrics = f"{launch.home}/metrics.jsonl"
    answer = call(["gcloud", "storage", "cat", "--range=-65536", metrics])
    steps = re.findall(r'^{"step": (\d+)', answer.out, re.M) if answer.ok else []
    return steps[-1] if steps else "-"


def _exits(launch: Launch, label: str) -> list[Exit]:
    answer = call(["gcloud", "storage", "cat", f"{launch.folder}/{label}/exit-*"])
    lines = [line.split() for line in answer.out.splitlines()] if answer.ok else []
    return [Exit(int(worker), int(code), *rest) for worker, code, *rest in lines]


def _ssh_all(launch: Launch, scripts: dict[int, str]) -> dict[int, Answer]:
    """Runs a script on each of these hosts, some at once."""
    answers, workers = {}, list(scripts)
    for first in range(0, len(workers), _SSH_AT_ONCE):
        some = workers[first : first + _SSH_AT_ONCE]
        commands = [ssh_command(launch, worker, scripts[worker]) for worker in some]
        answers |= dict(zip(some, call_all(commands), strict=True))
    return answers


def _forget_changed_key(error: str) -> None:
    """Removes the ssh key of a slice's earlier life: it has new keys under the old name."""
    host = re.search(r"[Hh]ost key for (\S+) has changed", error)
    file = re.search(r"Offending .* key in (.+):\d+", error)
    if host and file:
        command = ["ssh-keygen", "-f", file[1], "-R", host[1]]
        subprocess.run(command, capture_output=True, check=False)
