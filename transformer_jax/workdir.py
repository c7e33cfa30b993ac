"""A work directory: what its files are called, its lock, and files that are replaced as a whole.

Any process may import this: it knows neither JAX nor the hosts of a job. Only the first host of a
job may lock and write; the callers see to that.
"""

import fcntl
import json
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.json"  # the config that the directory belongs to
TOKENIZER = "tokenizer.json"  # so that predicting needs no training data
LABELS = "labels.json"  # the classes or tags, where the model predicts such
INIT_FROM = "init_from.json"  # what was taken from another run, where the config names one
PROFILE = "profile.json"  # variances and omega of each sublayer, where the scheme measures them
METRICS = "metrics.jsonl"  # the numbers of training, a step a line
TENSORBOARD = "tensorboard"  # the same numbers, for TensorBoard
SPIKES = "spikes"  # STEP.npz: the batches whose losses spiked, the first of them
RESULTS = "results.json"  # final scores, status, spikes and the first bad step
SAMPLES = "samples.txt"  # a few results on the test split
CHECKPOINTS = "checkpoints"  # one folder a step
ERROR = "error.log"  # the traceback of the last error that nobody expected
LOCK = ".lock"  # held by the process that trains here, and naming it

_held: dict[Path, int] = {}


def lock(workdir: str | os.PathLike) -> None:
    """Keeps other processes from locking `workdir` until this one ends, however it ends.

    Locking twice is locking once. Raises RuntimeError where a live process has the lock; the
    message names it.
    """
    path = Path(workdir).resolve() / LOCK
    if path in _held:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # A bare descriptor, since a file object would give up the lock when it is collected.
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 1000).decode()
        os.close(file)
        raise RuntimeError(
            f"{workdir} is in use by {holder or 'another process'}; wait for it or stop it, or "
            "choose another --workdir"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
    os.fsync(file)  # so that other hosts see it, also through a mounted bucket
    _held[path] = file


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file: whatever happens, its content is the old or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_results(workdir: str | os.PathLike) -> dict[str, Any]:
    """The content of results.json; empty where there is none."""
    path = Path(workdir) / RESULTS
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_results(workdir: str | os.PathLike, results: Mapping[str, Any]) -> None:
    """Replaces results.json by what `plain` makes of the results."""
    text = json.dumps(plain(results), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(Path(workdir) / RESULTS, text + "\n")


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    Arrays of NumPy and JAX become numbers and lists; numbers that are not finite become None.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
