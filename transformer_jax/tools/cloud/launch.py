"""What is launched, and where; what is said about it; all waiting."""

import dataclasses
import hashlib
import re
import time
from collections.abc import Iterable

_LONGEST_PAUSE = 600.0  # seconds


class Stop(Exception):
    """An end that a retry would not change; the message says why."""


class OutOfTime(Stop):
    """--max_hours are over."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """What is launched, and where. `home`: gs:// address of the work directory."""

    command: tuple[str, ...]
    home: str
    accelerator: str  # gcloud's name
    runtime: str  # the image of its hosts
    hosts: int
    zone: str
    project: str
    capacity: tuple[str, ...]  # flags of gcloud's create
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
        """The slice's name: always the same for a work directory, so that it is found again."""
        words = re.sub("[^a-z0-9]+", "-", self.home.rpartition("/")[2].lower()).strip("-")
        content = f"{self.home} {self.accelerator}".encode()
        return f"tpu-{words[:40]}-{hashlib.sha256(content).hexdigest()[:8]}"

    @property
    def logs_steps(self) -> bool:
        """Whether the work directory says how far the command is; an experiment has many runs."""
        return self.command[0] != "experiment"

    @property
    def bucket(self) -> str:
        """gs://BUCKET"""
        return "/".join(self.home.split("/")[:3])

    @property
    def folder(self) -> str:
        """The address of the launch's own files."""
        return f"{self.home}/launch"

    @property
    def place(self) -> list[str]:
        """The flags that every gcloud command about the slice takes."""
        return [f"--zone={self.zone}", f"--project={self.project}", "--quiet"]


def check_buckets(words: Iterable[str], bucket: str) -> None:
    """Raises Stop where a word names a bucket besides "gs://BUCKET", the one that hosts mount."""
    for word in words:
        if others := {*re.findall(r"gs://[\w.-]+", word)} - {bucket}:
            raise Stop(f"{word}: hosts mount {bucket} alone; copy there what is in {min(others)}")


def say(text: str) -> None:
    """Prints a text with the time."""
    print(f"[tpu {time.strftime('%H:%M:%S')}] {text}", flush=True)


def backoff(launch: Launch, count: int) -> float:
    """Seconds to wait before the next of so many trials, each twice as long as the last."""
    return min(launch.poll_seconds * 2.0 ** min(count, 20), _LONGEST_PAUSE)


def pause(launch: Launch, seconds: float) -> None:
    """Sleeps. Raises OutOfTime at the deadline."""
    time_left = launch.deadline - time.monotonic()
    time.sleep(max(0.0, min(seconds, time_left)))
    if time_left < seconds:
        raise OutOfTime("--max_hours are over")
