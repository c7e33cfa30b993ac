"""What a launch keeps in the bucket: the code that hosts run, and the lease of the one launcher."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.tools.cloud.gcloud import call, hopeless
from transformer_jax.tools.cloud.launch import Launch, Stop, say

_LEASE_POLLS = 10  # a launcher that shows no sign of life for so many counts as gone


class Code(NamedTuple):
    """The checkout as one archive. `version`: its commit, and what differs from it."""

    archive: bytes
    version: bytes

    @property
    def hash(self) -> str:
        """The archive's SHA-256, by which it is named."""
        return hashlib.sha256(self.archive).hexdigest()


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
            if (root / name).is_file() or (root / name).is_symlink():
                archive.add(root / name, name, filter=_plain)
    return Code(buffer.getvalue(), version)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def ship(launch: Launch, code: Code) -> None:
    """Copies the code into the bucket, and its version next to it."""
    for content, suffix in ((code.archive, "tar.gz"), (code.version, "patch")):
        answer = call(write_command(launch, f"{code.hash}.{suffix}"), content)
        if not answer.ok:
            raise Stop(f"could not copy the code to {launch.folder}: {answer.error}")


def write_command(launch: Launch, name: str, *flags: str) -> list[str]:
    """Writes an object of the launch's folder from its standard input."""
    return ["gcloud", "storage", "cp", "--quiet", *flags, "-", f"{launch.folder}/{name}"]


@contextlib.contextmanager
def lease(launch: Launch) -> Iterator[None]:
    """Holds the work directory against a second launcher. Raises Stop where there is one."""
    path = f"{launch.folder}/lease"
    # Google's way of "only if there is none yet".
    answer = call(write_command(launch, "lease", "--if-generation-match=0"), _sign_of_life())
    if not answer.ok:
        if "412" not in answer.error and "pre-condition" not in answer.error:
            raise Stop(f"could not write {path}: {hopeless(answer.error) or answer.error}")
        reply = call(["gcloud", "storage", "cat", path])
        other = json.loads(reply.out) if reply.ok else {"time": 0.0}
        age = time.time() - other["time"]
        if age < max(300.0, _LEASE_POLLS * launch.poll_seconds):
            raise Stop(
                f"{launch.home} is launched already, by process {other['process']} on "
                f"{other['host']}, {age:.0f} s ago. End that one, or choose another --workdir"
            )
        say("Taking over from a launcher that has not shown a sign of life for long.")
        call(write_command(launch, "lease"), _sign_of_life())
    ended = threading.Event()

    def show_signs_of_life():
        while not ended.wait(launch.poll_seconds):
            call(write_command(launch, "lease"), _sign_of_life())

    # In a thread: installing may take longer than a lease without a sign of life lasts.
    thread = threading.Thread(target=show_signs_of_life, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # or a last sign would come after the end
        call(["gcloud", "storage", "rm", "--quiet", path])


def _sign_of_life() -> bytes:
    sign = {"host": socket.gethostname(), "process": os.getpid(), "time": time.time()}
    return json.dumps(sign).encode()
