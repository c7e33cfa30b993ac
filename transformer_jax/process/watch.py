"""Hosts that watch each other: none outlives another, and all stop after the same step."""

import contextlib
import ctypes
import faulthandler
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging
from jax._src.distributed import global_state  # its store of texts is not public
from jax.experimental import multihost_utils

from transformer_jax.process import hosts, interrupt

BEAT_SECONDS = 3.0
GONE_SECONDS = 40.0  # without a beat; longer than any call that lets no other thread run

_GONE = "is gone; run the same command on all hosts again: it continues from the last checkpoint"

_leaving = threading.Event()


def start() -> None:
    """Joins the other hosts of the job, where there are any, and watches them.

    Raises as `hosts.join`.
    """
    if not hosts.join():
        return
    # JAX aborts when the first host is gone; Gloo may when any host is.
    ctypes.CDLL(None).signal(signal.SIGABRT, _explain_abort)
    threading.Thread(target=_watch, daemon=True, name="hosts").start()


def finish() -> None:
    """Waits until all hosts have done their work. Call it last."""
    hosts.gather("finish", "")
    _leaving.set()


def fail(error: BaseException) -> None:
    """Ends this process, after which the others end too; does nothing where there are none.

    It first waits where another host's end may have caused the error, until it can name that host.
    """
    if hosts.count() == 1:
        return
    if isinstance(error, RuntimeError):
        logging.warning("Waiting to see whether the cause is that another host is gone ...")
        time.sleep(GONE_SECONDS + 2 * BEAT_SECONDS)
    _end_all(str(error).partition("\n")[0] or type(error).__name__)


@contextlib.contextmanager
def stop_at_signal(prospect: Callable[[], str]) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether to stop; all hosts have to call it after every step.

    All hosts stop after the same step when SIGTERM or SIGINT has come to any of them. In a job of
    one process the first signal is answered at once with a line that ends with `prospect()`, and a
    second one of its kind ends the process; so does any signal before the first call, when there is
    nothing to save. A job of several may enter this once.
    """
    if hosts.count() > 1:
        with _agree_to_stop() as stop:
            yield stop
        return
    came: list[signal.Signals] = []
    asked = False

    def obey(number: signal.Signals) -> None:
        came.append(number)
        if not asked or came.count(number) > 1:
            interrupt.end(number)
        elif len(came) == 1:
            interrupt.tell(f"Stopping ({number.name}): {prospect()}")

    def stop() -> bool:
        nonlocal asked
        asked = True
        return bool(came)

    with interrupt.obeying(obey):
        yield stop


@contextlib.contextmanager
def _agree_to_stop() -> Iterator[Callable[[], bool]]:
    """JAX listens for SIGTERM itself, and tells all hosts after which of their steps to stop."""
    steps = itertools.count()
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        if not stopped and multihost_utils.reached_preemption_sync_point(next(steps)):
            stopped = True
            if hosts.is_first():
                interrupt.tell("Stopping: a host was told to, and all save this step.")
        return stopped

    def obey(number: signal.Signals) -> None:
        if number == signal.SIGTERM:  # JAX does not listen yet
            interrupt.end(number)
        os.kill(os.getpid(), signal.SIGTERM)

    with interrupt.obeying(obey):
        handler = signal.getsignal(signal.SIGTERM)
        # Not before: from here on SIGTERM has no effect but through `stop`.
        jax.config.update("jax_enable_preemption_service", True)
        global_state.initialize_preemption_sync_manager()
        try:
            yield stop
        finally:
            signal.signal(signal.SIGTERM, handler)  # in place of JAX's


def _watch() -> None:
    """Ends this process when another host has failed or is gone, with a message that names it."""
    store = hosts.client()
    # The last beat of each host, and when it came.
    last: dict[int, tuple[str | None, float]]
    last = dict.fromkeys(range(hosts.count()), (None, time.monotonic()))
    for beat in itertools.count():
        try:
            store.key_value_set(f"hosts/beats/{hosts.index()}", str(beat), allow_overwrite=True)
            beats = _numbered(store.key_value_dir_get("hosts/beats/"))
            failed = _numbered(store.key_value_dir_get("hosts/failed/"))
        except jax.errors.JaxRuntimeError:
            if not _leaving.is_set():
                _end(0, _GONE)
            return
        for host in failed.keys() - {hosts.index()}:
            _end(host, f"has failed: {failed[host]}")
        now = time.monotonic()
        for host, (previous, since) in last.items():
            if beats.get(host) != previous:
                last[host] = beats.get(host), now
            elif now - since > GONE_SECONDS:
                _end(host, _GONE)
        if _leaving.wait(BEAT_SECONDS):
            return


def _numbered(entries: list[tuple[str, str]]) -> dict[int, str]:
    """The values by the numbers with which their keys end."""
    return {int(key.rpartition("/")[2]): value for key, value in entries}


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _explain_abort(_: int) -> None:
    """Explains the end of another host where it makes C++ libraries abort this process."""
    if not hosts.is_first() and not _reaches_first():
        _end(0, _GONE)
    time.sleep(GONE_SECONDS + 2 * BEAT_SECONDS)  # `_watch` ends it if another host is gone
    interrupt.tell(f"error: {hosts.name(hosts.index())} was aborted, as told above")
    faulthandler.dump_traceback()
    # In another thread: the client may need the one that was aborted, and never return.
    telling = threading.Thread(target=_end_all, args=("it was aborted",), daemon=True)
    telling.start()
    telling.join(4 * BEAT_SECONDS)
    os._exit(1)


def _reaches_first() -> bool:
    host, _, port = (global_state.coordinator_address or "").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _end(host: int, what: str) -> None:
    """Ends this process because of another host."""
    ours, theirs = hosts.name(hosts.index()), hosts.name(host)
    interrupt.tell(f"error: {theirs} of {hosts.count()} {what}\n{ours} ends too")
    _exit()


def _end_all(text: str) -> None:
    """Ends this process, and tells the other hosts why, which makes them end too."""
    with contextlib.suppress(RuntimeError):
        hosts.client().key_value_set(f"hosts/failed/{hosts.index()}", text)
    _exit()


def _exit() -> None:
    """Ends the process without waiting for threads, devices or hosts that never answer."""
    if hosts.is_first():
        # The others read through this host why the job ends, and would blame it.
        time.sleep(2 * BEAT_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
