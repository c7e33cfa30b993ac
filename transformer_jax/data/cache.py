"""Folders that are built once, whole or not at all, even when several processes want them."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
from absl import logging


def fingerprint(*parts: object) -> str:
    """SHA-256, in hexadecimal, of parts that JSON can hold."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def build_once(folder: Path, build: Callable[[Path], None]) -> None:
    """Calls build(temporary folder) and renames that to `folder`, unless `folder` exists already.

    Args:
        folder: what to build; where it exists, it is whole.
        build: writes its files into the empty folder that it gets.
    """
    if folder.is_dir():
        return
    with locked(folder):
        if folder.is_dir():  # another process built it while this one waited
            return
        temporary = folder.with_name(folder.name + ".incomplete")
        shutil.rmtree(temporary, ignore_errors=True)  # a killed process left it
        temporary.mkdir()
        try:
            build(temporary)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of `folder` against other builders.

    Raises:
        OSError: the disk is full; the message says how to mend it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        logging.info("Waiting for the process that is building %s", folder)
        lock.acquire()
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            "no disk space left to build it; free some, or set data.cache_dir elsewhere",
            str(folder),
        ) from error
    finally:
        lock.release()
