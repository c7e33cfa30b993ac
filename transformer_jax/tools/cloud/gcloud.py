"""Runs gcloud, and tells which of its errors would come again."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformer_jax.tools.cloud.launch import Stop

_LONGEST_CALL = 1800.0  # seconds; installing on a host is one call

DISK_FULL = r"No space left on device|ENOSPC"
FORBIDDEN = r"HTTPError 403|PERMISSION_DENIED|does not have \S+ access"
_HOPELESS = {
    r"quota": "the quota of the project does not allow it: ask for more at "
    "https://console.cloud.google.com/iam-admin/quotas, or try --spot or another --zone",
    DISK_FULL: "its disk is full (100 GB unless --create='--boot-disk=...' "
    "or a --data-disk says otherwise): keep data and work directory in the bucket",
    FORBIDDEN: "not allowed: give the account "
    "(on a host its service account) the role that it needs, as Storage Object User of the bucket",
    r"SERVICE_DISABLED": "the API is off: gcloud services enable tpu.googleapis.com",
    r"HTTPError 404|bucket does not exist": "there is no such thing",
}


class Answer(NamedTuple):
    """How a process ended, and what it wrote."""

    ok: bool
    out: str
    error: str
    size: int = 0  # of `out`, in bytes


def call(command: Sequence[str], content: bytes = b"", *, strip: bool = True) -> Answer:
    """Runs a command with this standard input, out of reach of the terminal's Ctrl-C."""
    with _process(command) as process:
        answer = _answer(process, content)
    return answer._replace(out=answer.out.strip()) if strip else answer


def call_all(commands: Sequence[Sequence[str]]) -> list[Answer]:
    """Runs commands at the same time; returns their answers in order."""
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(_process(command)) for command in commands]
        return [_answer(process) for process in processes]


def hopeless(text: str) -> str:
    """Why a retry would end in the same way, with the text; empty where nothing says so."""
    for pattern, reason in _HOPELESS.items():
        if re.search(pattern, text, re.I):
            return f"{reason}\n{text}"
    return ""


def raise_if_hopeless(text: str, where: str = "gcloud") -> None:
    """Raises Stop for an error after which a retry would end in the same way."""
    if reason := hopeless(text):
        raise Stop(f"{where}: {reason}")


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
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
