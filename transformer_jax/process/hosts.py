"""The processes of one job: how they start together, who each is, and how they agree.

JAX runs one process on each host of a TPU slice, so a process is called a host here. All hosts run
the same program on the same arguments, and so make the same calls in the same order. What only one
host does (logs, results, lines on the screen) the first does. In a job of one process none of this
costs anything.
"""

import collections
import itertools
import json
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
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
# For all later meetings: one host alone may hash terabytes, and `watch` notices hosts that die.
MEET_SECONDS = 7 * 24 * 3600

_turns: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
_names: list[str] = []  # of the machines of all hosts


def join() -> bool:
    """Joins the other processes of the job; returns whether there are any.

    On plain machines TRANSFORMER_JAX_COORDINATOR (HOST or HOST:PORT of process 0),
    TRANSFORMER_JAX_PROCESSES (how many) and TRANSFORMER_JAX_PROCESS (which, from 0) say so; Cloud
    TPU, GKE, Slurm and Open MPI tell JAX themselves. From then on only the first host prints. To
    be called before any use of a device.

    Raises:
      ValueError: some of the three variables are missing, or are not numbers.
      RuntimeError: not all hosts came within `START_SECONDS`.
    """
    arguments = _arguments()
    if arguments is None or not _initialize(arguments):
        return False
    _names[:] = gather("names", socket.gethostname(), seconds=START_SECONDS)
    if not is_first():
        # One host is enough to print what all hosts know.
        sys.stdout = open(os.devnull, "w")
        progress.hide()
    return True


def count() -> int:
    """How many processes run this job."""
    return global_state.num_processes


def index() -> int:
    """The number of this process, from 0."""
    return global_state.process_id


def name(host: int) -> str:
    """A host of several, for messages: its number and its machine."""
    return f"host {host} ({_names[host]})"


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
    store, folder = client(), f"hosts/{name}"
    store.key_value_set(f"{folder}/{turn}/{index()}", text)
    texts = []
    for host in range(count()):
        try:
            value = store.blocking_key_value_get(f"{folder}/{turn}/{host}", seconds * 1000)
        except jax.errors.JaxRuntimeError as error:
            raise RuntimeError(f"host {host} did not come to {name!r}: {error}") from error
        texts.append(value)
    if turn:  # all have come here, so that all have read what came before
        store.key_value_delete(f"{folder}/{turn - 1}/{index()}")
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


def client() -> Any:
    """JAX's store of texts that all hosts share; there is one where there are several hosts."""
    assert global_state.client is not None
    return global_state.client


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
    if not (named[PROCESSES].isdecimal() and named[PROCESS].isdecimal()):
        raise ValueError(
            f"{PROCESSES}={named[PROCESSES]!r} and {PROCESS}={named[PROCESS]!r} must be numbers"
        )
    processes, process = int(named[PROCESSES]), int(named[PROCESS])
    if process >= processes:
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
    jax.config.update("jax_enable_preemption_service", False)  # see `watch`
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
