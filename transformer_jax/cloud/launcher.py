"""Runs a command of launch.sh on all hosts of a Cloud TPU slice until it is done. `launch.sh tpu`.

    ./launch.sh tpu --accelerator=v5e-16 --zone=us-west4-a --spot \\
        train --config=configs/wmt14_en_de_big.py --workdir=gs://BUCKET/runs/a

Queues the slice, ships this checkout through the bucket, installs it on every host, starts the
command there detached, and shows host 0's output. A preempted slice is made again and the command
goes on from its last checkpoint; so it does after a failure or a hang, unless that would only fail
again. The slice is deleted at the end, whatever the end is. The same command goes on;
WORKDIR/launch holds the code, the lease of the one launcher, and the hosts' output.

Needs gcloud and the standard library. Only the functions under "The slice", and `ssh_command`, know
through which interface Google lends it.
"""

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_SSH_AT_ONCE = 16
_SSH_TRIES = 5
_LONGEST_PAUSE = 600.0  # seconds
_LONGEST_CALL = 1800.0  # seconds; installing on a host is one
_LEASE_POLLS = 10  # for so many without a sign of life, a launcher counts as gone
_FAILED_POLLS = 5  # how long the other hosts are waited for, once one has failed
_LOG_LINES = 15  # of a failed host, that are shown


class Stop(Exception):
    """An end that a retry would not change; the message says why."""


class OutOfTime(Stop):
    """--max_hours are over."""


class Generation(NamedTuple):
    """A generation of TPUs. Names of v4 and v5p count cores, of which a chip has two."""

    name: str  # as gcloud writes it
    runtime: str  # the image of its hosts
    cores: int  # of a chip, as far as names count them
    one_host: int  # chips of the largest slice with one host; larger ones have 4 chips a host


_GENERATIONS = {
    "v4": Generation("v4", "tpu-ubuntu2204-base", 2, 4),
    "v5e": Generation("v5litepod", "v2-alpha-tpuv5-lite", 1, 8),
    "v5p": Generation("v5p", "v2-alpha-tpuv5", 2, 4),
    "v6e": Generation("v6e", "v2-alpha-tpuv6e", 1, 8),
}
# What Google calls a slice, or a request for one, that is to be waited for.
_COMING = (
    "READY",  # and under maintenance
    "CREATING",
    "STARTING",
    "RESTARTING",
    "REPAIRING",
    "ACCEPTED",
    "PROVISIONING",
    "WAITING_FOR_RESOURCES",
)


@dataclasses.dataclass(frozen=True)
class Launch:
    """What is launched, and where. `home`: gs:// address of the work directory."""

    command: tuple[str, ...]
    home: str
    accelerator: str  # gcloud's name
    runtime: str
    hosts: int
    zone: str
    project: str
    capacity: tuple[str, ...]  # flags of `create`
    queued: bool
    create: tuple[str, ...]  # further flags
    max_wait_hours: float
    deadline: float  # of time.monotonic
    max_failures: int
    hang_minutes: float
    poll_seconds: float
    keep: bool

    @property
    def name(self) -> str:
        """Of the slice: the same for a work directory each time, so that it is found again."""
        words = re.sub("[^a-z0-9]+", "-", self.home.rpartition("/")[2].lower()).strip("-")
        content = f"{self.home} {self.accelerator}".encode()
        return f"tpu-{words[:40]}-{hashlib.sha256(content).hexdigest()[:8]}"

    @property
    def logs_steps(self) -> bool:
        """Whether the work directory tells how far it is; not that of an experiment's many runs."""
        return self.command[0] != "experiment"

    @property
    def bucket(self) -> str:
        return "/".join(self.home.split("/")[:3])

    @property
    def folder(self) -> str:
        """Of what belongs to the launch."""
        return f"{self.home}/launch"


class Code(NamedTuple):
    """The checkout as one archive. `version`: its commit, and what differs from it."""

    archive: bytes
    version: bytes

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


class Answer(NamedTuple):
    """Of a process."""

    ok: bool
    out: str
    error: str
    size: int = 0  # of `out`, in bytes


class State(NamedTuple):
    """Of a slice: is there none, is one coming, is it ready, was it taken away, or unknown."""

    word: Literal["absent", "coming", "ready", "lost", "unknown"]
    detail: str


class Ended(NamedTuple):
    """How an attempt went. `hopeless`: it would fail so again. `progress`: it got to its output."""

    how: Literal["done", "preempted", "failed", "hung"]
    detail: str = ""
    hopeless: bool = False
    progress: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0 once the command is done on all hosts."""
    # Also where a shell has started this in the background, whose SIGINT is ignored otherwise.
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup, which is to go on
        signals.append(signal.SIGHUP)
    previous = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        launch, dry_run = _parse(sys.argv[1:] if argv is None else list(argv))
        code = pack(ROOT)
        if dry_run:
            for line in dry(launch, code):
                print(line)
            return 0
        check(launch)
        with lease(launch):
            run(launch, code)
        return 0
    except Stop as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from the last checkpoint.")
        return 130
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(launch: Launch, code: Code) -> None:
    """Ships, supervises, and deletes the slice whatever happens."""
    try:
        ship(launch, code)
        supervise(launch, code)
    except (KeyboardInterrupt, OutOfTime):
        with contextlib.suppress(KeyboardInterrupt):  # a second one: without saving
            if look(launch).word == "ready":
                say("Stopping: training saves where it is. Ctrl-C once more does not wait.")
                _ssh_all(launch, dict.fromkeys(range(launch.hosts), stop_script(code)))
        raise
    finally:
        if launch.keep:
            say(f"{launch.name} stays (--keep) and costs. To delete it:")
            say(f"  {shlex.join(delete_commands(launch)[0])}")
        else:
            delete(launch)


def supervise(launch: Launch, code: Code) -> None:
    """Attempt after attempt until the command is done. Raises Stop where another has no point."""
    preempted, failed_at = 0, []
    while True:
        obtain(launch)
        label = str(time.time_ns())  # of no other attempt, even in the same second
        started = start(launch, code, label)
        ended = follow(launch, label) if started else Ended("preempted")
        step = last_step(launch)
        if ended.how == "done":
            say("Done on all hosts.")
            return
        preempted = 0 if ended.progress else preempted
        if ended.how == "preempted":
            preempted += 1
            say(f"Preempted at step {step}: going on from the last checkpoint.")
            pause(launch, backoff(launch, preempted - 1))
            continue
        what = f"It {ended.how} at step {step}: {ended.detail}"
        if ended.hopeless:
            raise Stop(what)
        if launch.logs_steps and step in failed_at:
            raise Stop(f"{what}\nIt is the second time at this step, so there is no third.")
        failed_at.append(step)
        if len(failed_at) > launch.max_failures:
            raise Stop(f"{what}\nThat makes {len(failed_at)}, and --max_failures allows no more.")
        say(f"{what}\nGoing on from the last checkpoint.")
        pause(launch, backoff(launch, len(failed_at)))


# The slice ---------------------------------------------------------------------------------------


def create_command(launch: Launch) -> list[str]:
    """Asks for the slice: in a queue, or at once or not at all."""
    flex = any("flex-start" in flag for flag in launch.capacity)
    common = [*_place(launch), f"--accelerator-type={launch.accelerator}", *launch.capacity]
    if not launch.queued:
        create = ["gcloud", "compute", "tpus", "tpu-vm", "create", launch.name]
        return [*create, *common, f"--version={launch.runtime}", *launch.create]
    create = ["gcloud", *["alpha"] * flex, "compute", "tpus", "queued-resources", "create"]
    node = [f"--node-id={launch.name}", f"--runtime-version={launch.runtime}"]
    return [*create, launch.name, *common, *node, *launch.create, "--async"]


def delete_commands(launch: Launch) -> list[list[str]]:
    """Ends the request and its slice, if that is queued, and then a slice without a request."""
    tpus, named = ["gcloud", "compute", "tpus"], ["delete", launch.name, *_place(launch)]
    request, node = [*tpus, "queued-resources", *named, "--force"], [*tpus, "tpu-vm", *named]
    return [request, node] if launch.queued else [node]


def describe_commands(launch: Launch) -> list[list[str]]:
    """Asks for the request, if the slice is queued, and then for the slice itself."""
    tpus, place = ["gcloud", "compute", "tpus"], _place(launch)
    form = "--format=value(state.state,state.failedData.error.message)"
    request = [*tpus, "queued-resources", "describe", launch.name, *place, form]
    node = [*tpus, "tpu-vm", "describe", launch.name, *place, "--format=value(state,health)"]
    return [request, node] if launch.queued else [node]


def look(launch: Launch) -> State:
    """How it stands with the slice."""
    states = [_described(gcloud(command)) for command in describe_commands(launch)]
    words = [state.word for state in states]
    if "unknown" in words:
        return states[words.index("unknown")]
    if words == ["ready", "absent"]:  # a request never gets another slice
        return State("lost", "deleted")
    if words == ["absent", "ready"]:
        return State("lost", "without its request")
    # Not the slice's state, where there is only the request.
    return states[0] if words[0] in ("coming", "lost") else states[-1]


def _described(answer: Answer) -> State:
    if not answer.ok:
        gone = re.search("not.found", answer.error, re.I)
        return State("absent", "") if gone else State("unknown", answer.error)
    word = answer.out.partition("\t")[0]
    if word in ("ACTIVE", "READY") and "MAINTENANCE" not in answer.out:
        return State("ready", answer.out)
    return State("coming" if word in _COMING else "lost", answer.out)


def obtain(launch: Launch) -> None:
    """Returns once the slice is ready. Raises Stop if it cannot be had, or not within the time."""
    since, told, refused = time.monotonic(), "", 0
    while True:
        state = look(launch)
        if state.word == "ready":
            return
        waited = time.monotonic() - since
        if waited > launch.max_wait_hours * 3600:
            raise Stop(
                f"no {launch.accelerator} in {launch.zone} within {launch.max_wait_hours:g} hours "
                f"({state.detail or told}). Try another --zone, --spot, or a longer "
                "--max_wait_hours"
            )
        seconds = launch.poll_seconds
        if state.word in ("lost", "unknown"):
            _raise_if_hopeless(state.detail)
        if state.word == "lost":
            say(f"{launch.name} was {state.detail}: deleting it, to ask for another.")
            delete(launch)
        elif state.word == "absent":
            say(f"Asking for {launch.accelerator} in {launch.zone}, as {launch.name}.")
            answer = gcloud(create_command(launch))
            if not answer.ok:
                _raise_if_hopeless(answer.error)
                if not re.search("capacity|exhausted|unavailable", answer.error, re.I):
                    raise Stop(f"gcloud could not make the slice: {answer.error}")
                refused += 1
                seconds, told = backoff(launch, refused), answer.error
                say(f"No capacity now, trying again in {seconds:.0f} s.")
        elif state.detail != told:
            told = state.detail
            say(f"{told}, after {waited / 60:.0f} minutes of waiting.")
        pause(launch, seconds)


def delete(launch: Launch) -> None:
    """Deletes the slice and looks whether it is gone. Raises Stop when that cannot be seen.

    Signals are not heard meanwhile: a slice that is left behind costs money.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        say(f"Deleting {launch.name} ...")
        for trial in range(_SSH_TRIES):
            time.sleep(launch.poll_seconds * bool(trial))
            for command in delete_commands(launch):
                gcloud(command)
                state = look(launch)
                if state.word == "absent":
                    say(f"{launch.name} is deleted.")
                    return
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    raise Stop(
        f"{launch.name} may still be there and cost money ({state.detail}). Delete it:\n"
        + "\n".join(f"  {shlex.join(command)}" for command in delete_commands(launch))
    )


# The hosts ---------------------------------------------------------------------------------------


def start_script(launch: Launch, code: Code, worker: int, label: str) -> str:
    """What a host runs: fetches the code, then sees to it that exactly this job runs."""
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
            shlex.join(["bash", "transformer_jax/cloud/worker.sh", "start", *job]),
        )
    )


def stop_script(code: Code) -> str:
    """Ends the job of a host, which saves."""
    return shlex.join(
        ["bash", f"transformer_jax/{code.hash}/transformer_jax/cloud/worker.sh", "stop"]
    )


def start(launch: Launch, code: Code, label: str) -> bool:
    """Starts the job on every host; False if the slice was lost meanwhile.

    A host that cannot be reached is tried again, alone. Raises Stop where that does not help.
    """
    say(f"Installing and starting on {launch.hosts} host{'s' * (launch.hosts != 1)} ...")
    left, trial = list(range(launch.hosts)), 0
    while True:
        scripts = {worker: start_script(launch, code, worker, label) for worker in left}
        answers = _ssh_all(launch, scripts)
        left = [worker for worker in left if f"started {worker}" not in answers[worker].out]
        if not left:
            return True
        if look(launch).word != "ready":
            return False
        for worker in left:
            _raise_if_hopeless(answers[worker].error, f"host {worker}")
            _forget_changed_key(answers[worker].error)
        trial += 1
        error = answers[left[0]].error or "its ssh ended well, but nothing was started"
        named = ", ".join(map(str, left))
        if trial == _SSH_TRIES:
            raise Stop(
                f"could not start on host {named} of {launch.hosts}: {error}\n"
                "If ssh is denied: ssh-add ~/.ssh/google_compute_engine, or set up OS Login"
            )
        say(f"Trying again on host {named}: {error.splitlines()[-1]}")
        pause(launch, backoff(launch, trial))


def follow(launch: Launch, label: str) -> Ended:
    """Shows host 0's output until the job has ended or hangs, or the slice is lost."""
    log, seen, heard, since_failure = f"{launch.folder}/{label}/log-0", 0, time.monotonic(), 0
    while True:
        exits = _exits(launch, label)  # before the log, which is whole once they are there
        answer = gcloud(["gcloud", "storage", "cat", f"--range={seen}-", log], strip=False)
        if answer.ok and answer.out:
            print(answer.out, end="", flush=True)
            seen, heard = seen + answer.size, time.monotonic()
        failed = [exit for exit in exits if exit.code]
        if len(exits) == launch.hosts and not failed:
            return Ended("done")
        since_failure += bool(failed)
        lost = look(launch).word in ("lost", "absent")
        hangs = time.monotonic() - heard > launch.hang_minutes * 60
        if len(exits) == launch.hosts or since_failure > _FAILED_POLLS or lost or hangs:
            break
        pause(launch, launch.poll_seconds)
    by_themselves = [exit for exit in failed if exit.code != 128 + signal.SIGTERM]
    if lost or (failed and not by_themselves) or look(launch).word != "ready":
        return Ended("preempted", progress=seen > 0)
    if not failed:
        return Ended("hung", f"no output for {launch.hang_minutes:g} minutes")
    first, told = min(by_themselves), min(exits)  # host 0 writes the work directory
    # What has never made a step is a mistake in what was asked for; "diverged" is a result.
    mistaken = launch.logs_steps and told.status == "none" and last_step(launch) == "-"
    tail = gcloud(["gcloud", "storage", "cat", f"{launch.folder}/{label}/log-{first.worker}"]).out
    lines = [line for line in tail.replace("\r", "\n").splitlines() if line.strip()]
    return Ended(
        "failed",
        f"host {first.worker} ended with {first.code}\n"
        + "\n".join(f"  {line}" for line in lines[-_LOG_LINES:]),
        hopeless=mistaken or told.status == "diverged" or re.search(_DISK_FULL, tail) is not None,
        progress=seen > 0,
    )


class Exit(NamedTuple):
    """How the job ended on a host: exit status, and status of the run."""

    worker: int
    code: int
    status: str


def last_step(launch: Launch) -> str:
    """The last one that has been logged where it outlives the slice."""
    metrics = f"{launch.home}/metrics.jsonl"
    answer = gcloud(["gcloud", "storage", "cat", "--range=-65536", metrics])
    steps = re.findall(r'^{"step": (\d+)', answer.out, re.M) if answer.ok else []
    return steps[-1] if steps else "-"


def _exits(launch: Launch, label: str) -> list[Exit]:
    answer = gcloud(["gcloud", "storage", "cat", f"{launch.folder}/{label}/exit-*"])
    lines = [line.split() for line in answer.out.splitlines()] if answer.ok else []
    return [Exit(int(worker), int(code), *rest) for worker, code, *rest in lines]


def ssh_command(launch: Launch, worker: int, script: str) -> list[str]:
    """Runs a script on a host; asks nothing, so that it cannot wait for a passphrase."""
    return [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", launch.name, *_place(launch)),
        *(f"--worker={worker}", "--ssh-flag=-oBatchMode=yes", f"--command={script}"),
    ]


def _ssh_all(launch: Launch, scripts: dict[int, str]) -> dict[int, Answer]:
    """Runs a script on each of these hosts, some at once."""
    answers, workers = {}, list(scripts)
    for first in range(0, len(workers), _SSH_AT_ONCE):
        some = workers[first : first + _SSH_AT_ONCE]
        with contextlib.ExitStack() as running:
            processes = [
                running.enter_context(_process(ssh_command(launch, worker, scripts[worker])))
                for worker in some
            ]
            for worker, process in zip(some, processes, strict=True):
                answers[worker] = _answer(process)
    return answers


def _forget_changed_key(error: str) -> None:
    """A slice that was made again has new keys under the old name; ours are from its last life."""
    host = re.search(r"[Hh]ost key for (\S+) has changed", error)
    file = re.search(r"Offending .* key in (.+):\d+", error)
    if host and file:
        command = ["ssh-keygen", "-f", file[1], "-R", host[1]]
        subprocess.run(command, capture_output=True, check=False)


# The bucket --------------------------------------------------------------------------------------


def pack(root: Path) -> Code:
    """All files that git knows or would add, as they are; the same files give the same bytes."""

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(root), *arguments]
        try:
            return subprocess.run(command, capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise Stop(f"{root} has to be a git clone with a commit: {error}") from error

    version = b"commit " + git("rev-parse", "HEAD") + git("diff", "--binary", "HEAD")
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode()
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name in sorted(filter(None, names.split("\0"))):
            if (root / name).is_file():
                archive.add(root / name, name, filter=_plain)
    return Code(buffer.getvalue(), version)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def ship(launch: Launch, code: Code) -> None:
    """Copies the code into the bucket, and beside it what it is."""
    for content, name in ((code.archive, "tar.gz"), (code.version, "patch")):
        answer = gcloud(ship_command(launch, code, name), content)
        if not answer.ok:
            raise Stop(f"could not copy the code to {launch.folder}: {answer.error}")


def ship_command(launch: Launch, code: Code, suffix: str) -> list[str]:
    """Writes an object from its standard input."""
    target = f"{launch.folder}/{code.hash}.{suffix}"
    return ["gcloud", "storage", "cp", "--quiet", "-", target]


def lease_command(launch: Launch, *flags: str) -> list[str]:
    """Writes the lease from its standard input."""
    return ["gcloud", "storage", "cp", "--quiet", *flags, "-", f"{launch.folder}/lease"]


@contextlib.contextmanager
def lease(launch: Launch) -> Iterator[None]:
    """Holds the work directory against a second launcher. Raises Stop where there is one."""
    path = f"{launch.folder}/lease"
    # Google's way of "only if there is none yet".
    answer = gcloud(lease_command(launch, "--if-generation-match=0"), _sign_of_life())
    if not answer.ok:
        if "412" not in answer.error and "pre-condition" not in answer.error:
            raise Stop(f"could not write {path}: {_hopeless(answer.error) or answer.error}")
        found = gcloud(["gcloud", "storage", "cat", path])
        other = json.loads(found.out) if found.ok else {"time": 0.0}
        age = time.time() - other["time"]
        if age < max(300.0, _LEASE_POLLS * launch.poll_seconds):
            raise Stop(
                f"{launch.home} is launched already, by process {other['process']} on "
                f"{other['host']}, {age:.0f} s ago. End that one, or choose another --workdir"
            )
        say("Taking over from a launcher that has not shown a sign of life for long.")
        gcloud(lease_command(launch), _sign_of_life())
    ended = threading.Event()

    def show_signs_of_life():
        while not ended.wait(launch.poll_seconds):
            gcloud(lease_command(launch), _sign_of_life())

    # Beside all else, since installing may take longer than a lease without them counts.
    thread = threading.Thread(target=show_signs_of_life, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # or a last sign would come after the end
        gcloud(["gcloud", "storage", "rm", "--quiet", path])


def _sign_of_life() -> bytes:
    sign = {"host": socket.gethostname(), "process": os.getpid(), "time": time.time()}
    return json.dumps(sign).encode()


def backoff(launch: Launch, count: int) -> float:
    """Seconds to wait after so many times, each twice as long as the last."""
    return min(launch.poll_seconds * 2.0 ** min(count, 20), _LONGEST_PAUSE)


def pause(launch: Launch, seconds: float) -> None:
    """Sleeps. Raises OutOfTime at the deadline. All waiting is here."""
    left = launch.deadline - time.monotonic()
    time.sleep(max(0.0, min(seconds, left)))
    if left < seconds:
        raise OutOfTime("--max_hours are over")


# Commands ----------------------------------------------------------------------------------------


def check_commands(launch: Launch) -> list[list[str]]:
    """Asks for the account, and where the bucket is, which the account may not be told."""
    return [
        ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)"],
        ["gcloud", "storage", "buckets", "describe", launch.bucket, "--format=value(location)"],
    ]


def check(launch: Launch) -> None:
    """Raises Stop for what would fail later, when it costs more."""
    account, bucket = map(gcloud, check_commands(launch))
    if not account.out:
        raise Stop("gcloud has no account: gcloud auth login")
    if not bucket.ok and not re.search(_FORBIDDEN, bucket.error, re.I):
        raise Stop(f"{launch.bucket}: {_hopeless(bucket.error) or bucket.error}")
    region = launch.zone.rpartition("-")[0]
    if bucket.ok and bucket.out.lower() not in (region, region.partition("-")[0]):
        say(f"Note: {launch.bucket} is in {bucket.out}, the slice in {region}: slow, and it costs.")


def dry(launch: Launch, code: Code) -> Iterable[str]:
    """Every command of a launch without accidents; those that look or wait come again and again."""
    label = "ATTEMPT"
    log = f"{launch.folder}/{label}/log-0"
    commands = [
        *check_commands(launch),
        lease_command(launch, "--if-generation-match=0"),
        *(ship_command(launch, code, suffix) for suffix in ("tar.gz", "patch")),
        *describe_commands(launch),
        create_command(launch),
        lease_command(launch),
        *(
            ssh_command(launch, worker, start_script(launch, code, worker, label))
            for worker in range(launch.hosts)
        ),
        ["gcloud", "storage", "cat", "--range=0-", log],
        ["gcloud", "storage", "cat", f"{launch.folder}/{label}/exit-*"],
        ["gcloud", "storage", "cat", "--range=-65536", f"{launch.home}/metrics.jsonl"],
        *([] if launch.keep else delete_commands(launch)[:1]),
        ["gcloud", "storage", "rm", "--quiet", f"{launch.folder}/lease"],
    ]
    return map(shlex.join, commands)


def gcloud(command: list[str], content: bytes = b"", strip: bool = True) -> Answer:
    """Runs it with this standard input, out of reach of the terminal's Ctrl-C."""
    with _process(command) as process:
        answer = _answer(process, content)
    return answer._replace(out=answer.out.strip()) if strip else answer


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # gcloud's own ssh too
            process.wait()


def _answer(process: subprocess.Popen[bytes], content: bytes = b"") -> Answer:
    try:
        out, error = process.communicate(content, _LONGEST_CALL)
    except subprocess.TimeoutExpired:
        return Answer(False, "", f"no answer for {_LONGEST_CALL:.0f} s")
    texts = [text.decode("utf-8", errors="replace") for text in (out, error)]
    return Answer(process.returncode == 0, texts[0], texts[1].strip(), len(out))


def _place(launch: Launch) -> list[str]:
    return [f"--zone={launch.zone}", f"--project={launch.project}", "--quiet"]


_DISK_FULL = r"No space left on device|ENOSPC"
_FORBIDDEN = r"HTTPError 403|PERMISSION_DENIED|does not have \S+ access"
_HOPELESS = {
    r"quota": "the quota of the project does not allow it: ask for more at "
    "https://console.cloud.google.com/iam-admin/quotas, or try --spot or another --zone",
    _DISK_FULL: "its disk is full (100 GB unless --create='--boot-disk=...' "
    "or a --data-disk says otherwise): keep data and work directory in the bucket",
    _FORBIDDEN: "not allowed: give the account "
    "(on a host its service account) the role that it needs, as Storage Object User of the bucket",
    r"SERVICE_DISABLED": "the API is off: gcloud services enable tpu.googleapis.com",
    r"HTTPError 404|bucket does not exist": "there is no such thing",
}


def _hopeless(text: str) -> str:
    """Why a retry would end in the same way, with the text; empty where nothing says so."""
    for pattern, reason in _HOPELESS.items():
        if re.search(pattern, text, re.I):
            return f"{reason}\n{text}"
    return ""


def _raise_if_hopeless(text: str, where: str = "gcloud") -> None:
    if reason := _hopeless(text):
        raise Stop(f"{where}: {reason}")


def say(text: str) -> None:
    """Prints it with the time."""
    print(f"[tpu {time.strftime('%H:%M:%S')}] {text}", flush=True)


def _parse(argv: list[str]) -> tuple[Launch, bool]:
    parser = argparse.ArgumentParser(
        prog="launch.sh tpu", description="Runs a command of launch.sh on a Cloud TPU slice."
    )
    parser.add_argument("--accelerator", required=True, help="v4-32, v5e-16, v5p-256, v6e-8, ...")
    parser.add_argument("--zone", required=True, help="as us-west4-a")
    parser.add_argument("--project", help="default: gcloud's")
    lent = parser.add_mutually_exclusive_group()
    lent.add_argument("--spot", action="store_true", help="cheaper, and may be taken away")
    lent.add_argument("--reserved", action="store_true", help="from a reservation")
    lent.add_argument("--flex_start", metavar="DURATION", help="for up to 7d, as 12h")
    parser.add_argument("--now", action="store_true", help="do not queue: at once, or try again")
    parser.add_argument("--create", default="", help="further flags of gcloud's create")
    parser.add_argument("--max_wait_hours", type=float, default=24.0, help="for a slice (24)")
    parser.add_argument("--max_hours", type=float, default=float("inf"), help="in all")
    parser.add_argument("--max_failures", type=int, default=3, help="preemptions do not count (3)")
    parser.add_argument("--hang_minutes", type=float, default=30.0, help="without output (30)")
    parser.add_argument("--poll_seconds", type=float, default=30.0, help="between looks (30)")
    parser.add_argument("--keep", action="store_true", help="do not delete the slice at the end")
    parser.add_argument("--dry_run", action="store_true", help="only print every command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of launch.sh, with its flags")
    found = parser.parse_args(argv)
    generation, chips = _slice(found.accelerator)
    if shutil.which("gcloud") is None and not (found.dry_run and found.project):
        raise Stop("found no gcloud on PATH: https://cloud.google.com/sdk/docs/install")
    project = found.project or gcloud(["gcloud", "config", "get-value", "project"]).out
    if not project:
        raise Stop("give --project, or: gcloud config set project PROJECT")
    capacity = ["--spot"] * found.spot + ["--reserved"] * found.reserved
    if found.flex_start:
        if found.now:
            raise Stop("--flex_start is queued always: leave --now out")
        capacity = ["--provisioning-model=flex-start", f"--max-run-duration={found.flex_start}"]
    hosts = 1 if chips <= generation.one_host else chips // 4
    if hosts > 1 and "experiment" in found.command[:1]:
        raise Stop(f"an experiment runs on one host: {found.accelerator} has {hosts}")
    same = ("zone", "max_wait_hours", "max_failures", "hang_minutes", "poll_seconds", "keep")
    launch = Launch(
        command=tuple(_command(found.command)),
        home=_home(found.command),
        accelerator=f"{generation.name}-{chips * generation.cores}",
        runtime=generation.runtime,
        hosts=hosts,
        project=project,
        capacity=tuple(capacity),
        queued=not found.now,
        create=tuple(shlex.split(found.create)),
        deadline=time.monotonic() + found.max_hours * 3600,
        **{name: getattr(found, name) for name in same},
    )
    return launch, found.dry_run


def _slice(accelerator: str) -> tuple[Generation, int]:
    """Generation and number of chips. Raises Stop for what cannot be launched."""
    name, _, size = accelerator.replace("v5litepod", "v5e").partition("-")
    if name.startswith("tpu7"):
        raise Stop(
            f"{accelerator}: Google lends this generation through Compute Engine and GKE alone, "
            "which is not built yet. It can be compiled for: --mode=preflight"
        )
    known = ", ".join(_GENERATIONS)
    if name not in _GENERATIONS or not size.isdigit():
        raise Stop(f"--accelerator={accelerator}: expected one slice of {known}, as v5e-16")
    generation = _GENERATIONS[name]
    chips, odd = divmod(int(size), generation.cores)
    if odd or chips < 1 or (chips > generation.one_host and chips % 4):
        raise Stop(f"--accelerator={accelerator}: there is no slice of {size}, as 8, 16 or 32")
    return generation, chips


def _home(command: Sequence[str]) -> str:
    """The gs:// folder that the command writes to. Raises Stop where there is none."""
    for argument in command:
        flag, _, value = argument.partition("=")
        if flag in ("--workdir", "--runs_dir"):
            if not re.fullmatch(r"gs://[^/]+/.*[^/]", value):
                raise Stop(f"{argument}: expected {flag}=gs://BUCKET/FOLDER, to outlive a slice")
            return value
    raise Stop("give a command of launch.sh: train --config=... --workdir=gs://BUCKET/FOLDER")


def _command(command: Sequence[str]) -> Iterator[str]:
    """The command as it is on a host, where configs are relative to the checkout."""
    for argument in command:
        flag, _, value = argument.partition("=")
        if flag == "--config":
            file, colon, rest = value.partition(":")
            path = Path(file).resolve() if Path(file).exists() else ROOT / file
            if not path.is_relative_to(ROOT) or not path.exists():
                raise Stop(f"{argument}: the file has to be in {ROOT}, which is what hosts get")
            argument = f"--config={path.relative_to(ROOT)}{colon}{rest}"
        yield argument


if __name__ == "__main__":
    sys.exit(main())
