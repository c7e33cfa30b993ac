"""The processes of one job: how they start together, agree, and end together.

JAX runs one process on each host of a TPU slice, so a process is called a host here. All hosts run
the same program on the same arguments, and so make the same calls in the same order. What only one
host does (logs, results, lines on the screen) the first does. In a job of one process none of this
costs anything.
"""

import collections
import contextlib
import ctypes
import faulthandler
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import jax
from absl import logging
from jax._src.distributed import global_state  # its store of texts is not public
from jax.experimental import multihost_utils

from transformer_jax.process import interrupt, progress

T = TypeVar("T")

COORDINATOR = "TRANSFORMER_JAX_COORDINATOR"
PROCESSES = "TRANSFORMER_JAX_PROCESSES"
PROCESS = "TRANSFORMER_JAX_PROCESS"
# JAX's own is 8482 now, which firewalls of TPU slices that were made for 8476 block (jax#35905).
PORT = 8476

LONELY_SECONDS = 30.0  # after which a host says that it still waits for the others
START_SECONDS = 1800  # JAX's own 300 are too few for a slice that starts cold
# For all later meetings: one host alone may hash terabytes, and `_watch` notices hosts that die.
MEET_SECONDS = 7 * 24 * 3600
BEAT_SECONDS = 3.0
GONE_SECONDS = 40.0  # without a beat; longer than any call that lets no other thread run

_GONE = "is gone; run the same command on all hosts again: it continues from the last checkpoint"

_turns: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
_leaving = threading.Event()


def start() -> None:
    """Joins the other processes of the job, where the environment says that there are any.

    On plain machines TRANSFORMER_JAX_COORDINATOR (HOST or HOST:PORT of process 0),
    TRANSFORMER_JAX_PROCESSES (how many) and TRANSFORMER_JAX_PROCESS (which, from 0) say so; Cloud
    TPU, GKE, Slurm and Open MPI tell JAX themselves. Call it before any use of a device.

    Raises:
      ValueError: some of the three variables are missing, or are not numbers.
      RuntimeError: not all hosts came within `START_SECONDS`.
    """
    arguments = _arguments()
    if arguments is None or not _initialize(arguments):
        return
    names = gather("names", socket.gethostname(), seconds=START_SECONDS)
    if not is_first():
        # One host is enough to print what all hosts know.
        sys.stdout = open(os.devnull, "w")
        progress.hide()
    _explain_abort(names)
    sys.excepthook = _fail_at_exception
    threading.Thread(target=_watch, args=(names,), daemon=True, name="hosts").start()


def finish() -> None:
    """Waits until all hosts have done their work. Call it last."""
    gather("finish", "")
    _leaving.set()


def fail(error: BaseException) -> None:
    """Ends this process, after which the others end too; does nothing where there are none.

    It first waits where another host's end may have caused the error, until it can name that host.
    """
    if count() == 1:
        return
    if isinstance(error, RuntimeError):
        logging.warning("Waiting to see whether the cause is that another host is gone ...")
        time.sleep(GONE_SECONDS + 2 * BEAT_SECONDS)
    _tell_others(str(error).partition("\n")[0] or type(error).__name__)
    _exit()


def count() -> int:
    """How many processes run this job."""
    return global_state.num_processes


def index() -> int:
    """The number of this process, from 0."""
    return global_state.process_id


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return index() == 0


def gather(name: str, text: str, *, seconds: int = MEET_SECONDS) -> list[str]:
    """The texts of all hosts, in their order.

    All hosts have to call it equally often for each name, in any thread.

    Raises:
      RuntimeError: a host has not come within so many seconds.
    """
    if count() == 1:
        return [text]
    turn = next(_turns[name])
    client, folder = _client(), f"hosts/{name}"
    client.key_value_set(f"{folder}/{turn}/{index()}", text)
    texts = []
    for host in range(count()):
        try:
            value = client.blocking_key_value_get(f"{folder}/{turn}/{host}", seconds * 1000)
        except jax.errors.JaxRuntimeError as error:
            raise RuntimeError(f"host {host} did not come to {name!r}: {error}") from error
        texts.append(value)
    if turn:  # all have come here, so that all have read what came before
        client.key_value_delete(f"{folder}/{turn - 1}/{index()}")
    return texts


def first(f: Callable[[], T]) -> T:
    """Calls f() on the first host alone, and returns its result, which JSON can hold, on all."""
    if count() == 1:
        return f()
    return json.loads(gather("first", json.dumps(f()) if is_first() else "")[0])


def check_shared(path: Path) -> None:
    """Raises FileNotFoundError where this host does not see a file that the first has written."""
    if not path.exists():
        raise FileNotFoundError(
            f"host {index()} does not see what host 0 has written into {path.parent}: the hosts of "
            "a job need a --workdir that they share, as a network file system or a mounted bucket"
        )


def whole(tree: Any) -> Any:
    """The arrays of the tree as NumPy arrays, whole on every host, wherever their shards are."""
    if count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


@contextlib.contextmanager
def stop_at_signal(prospect: Callable[[], str]) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether to stop; all hosts have to call it after every step.

    All hosts stop after the same step when SIGTERM or SIGINT has come to any of them. In a job of
    one process the first signal is answered at once with a line that ends with `prospect()`, and a
    second one of its kind ends the process; so does any signal before the first call, when there is
    nothing to save. A job of several may enter this once.
    """
    if count() > 1:
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
            if is_first():
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


def _arguments() -> dict[str, Any] | None:
    """The arguments of jax.distributed.initialize; None where this process is certainly alone."""
    named = {
        name: os.environ[name] for name in (COORDINATOR, PROCESSES, PROCESS) if name in os.environ
    }
    if not named:
        tasks = os.environ.get("SLURM_NTASKS")
        if tasks == "1":
            return None
        if tasks and tasks == os.environ.get("SLURM_STEP_NUM_NODES"):
            # JAX would give the only task of a node one of its devices; an empty list means all.
            return {"local_device_ids": []}
        return {}
    if len(named) < 3:
        raise ValueError(
            f"of {COORDINATOR}, {PROCESSES} and {PROCESS} only {', '.join(named)} is set: set all "
            "three on every host, or none where there is only one"
        )
    try:
        processes, process = int(named[PROCESSES]), int(named[PROCESS])
    except ValueError:
        raise ValueError(
            f"{PROCESSES}={named[PROCESSES]!r} and {PROCESS}={named[PROCESS]!r} must be numbers"
        ) from None
    if not 0 <= process < processes:
        raise ValueError(
            f"{PROCESS}={process} does not lie in 0 to {PROCESSES} - 1 = {processes - 1}"
        )
    if processes == 1:
        return None
    host, _, port = named[COORDINATOR].partition(":")
    return {
        "coordinator_address": f"{host}:{port or PORT}",
        "num_processes": processes,
        "process_id": process,
        "cluster_detection_method": "deactivate",
    }


def _initialize(arguments: dict[str, Any]) -> bool:
    """Joins the other processes; returns whether there are any.

    On CPUs they compute together through Gloo, JAX's default.
    """
    jax.config.update("jax_enable_preemption_service", False)  # see `_agree_to_stop`
    if "SLURM_JOB_ID" not in os.environ:  # whose ports JAX derives from the number of the job
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(PORT))
    lonely = threading.Timer(LONELY_SECONDS, _say_lonely)
    lonely.daemon = True
    lonely.start()
    try:
        with warnings.catch_warnings(action="ignore"):  # of pods that are no job of several
            jax.distributed.initialize(initialization_timeout=START_SECONDS, **arguments)
    except ValueError as error:
        if arguments or "coordinator_address" not in str(error):
            raise
        return False  # no launcher that JAX knows runs several processes here
    finally:
        lonely.cancel()
    if count() == 1:
        jax.distributed.shutdown()
    return count() > 1


def _say_lonely() -> None:
    address = global_state.coordinator_address
    interrupt.tell(
        f"host {index()} ({socket.gethostname()}) has waited {LONELY_SECONDS:.0f} s for the other "
        f"hosts of this job to come to {address}. Start the same command on all of them; their "
        "firewalls must let that port through"
    )


def _watch(names: list[str]) -> None:
    """Ends this process when another host has failed or is gone, with a message that names it."""
    client, last = _client(), {}
    started = time.monotonic()
    for beat in itertools.count():
        try:
            client.key_value_set(f"hosts/beats/{index()}", str(beat), allow_overwrite=True)
            beats = _numbered(client.key_value_dir_get("hosts/beats/"))
            failed = _numbered(client.key_value_dir_get("hosts/failed/"))
        except jax.errors.JaxRuntimeError:
            if not _leaving.is_set():
                _end(names, 0, _GONE)
            return
        for host in failed.keys() - {index()}:
            _end(names, host, f"has failed: {failed[host]}")
        now = time.monotonic()
        for host in range(count()):
            newest = beats.get(host)
            if newest != last.get(host, (None, started))[0]:
                last[host] = newest, now
            elif now - last.get(host, (None, started))[1] > GONE_SECONDS:
                _end(names, host, _GONE)
        if _leaving.wait(BEAT_SECONDS):
            return


def _numbered(entries: list[tuple[str, str]]) -> dict[int, str]:
    return {int(key.rpartition("/")[2]): value for key, value in entries}


def _explain_abort(names: list[str]) -> None:
    """Explains the end of another host where it makes C++ libraries abort this process.

    JAX aborts when the first host is gone; Gloo may when any host is.
    """

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def explain(_: int) -> None:
        if not is_first() and not _reaches_first():
            _end(names, 0, _GONE)
        time.sleep(GONE_SECONDS + 2 * BEAT_SECONDS)  # `_watch` ends it if another host is gone
        interrupt.tell(f"error: host {index()} ({names[index()]}) was aborted, as told above")
        faulthandler.dump_traceback()
        # In another thread: the client may need the one that was aborted, and never return.
        telling = threading.Thread(target=_tell_others, args=("it was aborted",), daemon=True)
        telling.start()
        telling.join(4 * BEAT_SECONDS)
        os._exit(1)

    _kept.append(explain)
    ctypes.CDLL(None).signal(signal.SIGABRT, explain)


_kept: list[Any] = []  # callbacks of C, which must not be garbage-collected


def _reaches_first() -> bool:
    host, _, port = (global_state.coordinator_address or "").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def _end(names: list[str], host: int, what: str) -> None:
    me = f"host {index()} ({names[index()]})"
    interrupt.tell(f"error: host {host} ({names[host]}) of {len(names)} {what}\n{me} ends too")
    _let_others_read()
    _exit()


def _tell_others(text: str) -> None:
    """Tells the other hosts why this one ends, which makes them end too."""
    with contextlib.suppress(RuntimeError):
        _client().key_value_set(f"hosts/failed/{index()}", text)
        _let_others_read()


def _let_others_read() -> None:
    """Gives them time: they read through the first host why the job ends, and would blame it."""
    if is_first():
        time.sleep(2 * BEAT_SECONDS)


def _exit() -> None:
    """Ends the process without waiting for threads, devices or hosts that never answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _fail_at_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, trace)
    fail(error)


def _client() -> Any:
    assert global_state.client is not None
    return global_state.client
