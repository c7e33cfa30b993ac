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

from transformer_jax.runs import manifest
from transformer_jax.runs.workdir import disk_is_full


def fingerprint(*parts: object) -> str:
    """SHA-256, in hexadecimal, of parts that JSON can hold."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def build_once(folder: Path, build: Callable[[Path], None]) -> None:
    """Calls build(temporary folder) and renames that to `folder`, unless `folder` exists already.

    Args:
        folder: what to build; where it exists and has its files as they were built, it is whole.
        build: writes its files into the empty folder that it gets.
    """
    with resumed(folder) as temporary:
        if temporary is None:
            return
        shutil.rmtree(temporary)  # a killed process left it
        temporary.mkdir()
        try:
            build(temporary)
        except BaseException:
            shutil.rmtree(temporary)
            raise


@contextlib.contextmanager
def resumed(folder: Path) -> Iterator[Path | None]:
    """The unfinished state of `folder`, which a killed process may have left; None: it is whole.

    Where nothing fails it becomes `folder` at the end, in the place of a damaged one. What is
    refused (ValueError) is deleted, what is interrupted stays: whoever comes next continues it.
    """
    with contextlib.nullcontext() if (whole := damage(folder) is None) else locked(folder):
        if whole or (harm := damage(folder)) is None:  # another process may have built it meanwhile
            yield None
            return
        if folder.exists():
            logging.warning("%s is damaged, and is made again: %s", folder, harm)
        unfinished = folder.with_name(folder.name + ".unfinished")
        unfinished.mkdir(exist_ok=True)
        try:
            yield unfinished
        except ValueError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        manifest.write(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)


def damage(folder: Path) -> str | None:
    """Why a folder is not as it was built, or None. Older versions have built some unhashed."""
    if (folder / manifest.NAME).exists() or not folder.is_dir():
        return manifest.fault(folder)
    return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of `folder` against other builders.

    Raises:
        OSError: the disk is full, or data.cache_dir cannot be written; the message says so.
    """
    lock = filelock.FileLock(folder.with_name(folder.name + ".lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            logging.info("Waiting for the process that is building %s", folder)
            lock.acquire()
        yield
    except Exception as error:
        if disk_is_full(error) and not isinstance(error, ValueError):  # ours, which quotes the data
            raise OSError(
                errno.ENOSPC,
                "no disk space left to build it; free some, or set data.cache_dir elsewhere",
                str(folder),
            ) from error
        if isinstance(error, OSError) and not lock.is_locked:
            reason = f"data.cache_dir is not a folder that can be written ({error.strerror})"
            raise OSError(error.errno, reason, str(folder.parent)) from error
        raise
    finally:
        lock.release()
