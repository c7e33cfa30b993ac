"""A work directory: what its files are called, its lock, and files that are replaced as a whole.

Any process may import this: it knows neither JAX nor the hosts of a job. Only the first host of a
job may lock and write; the callers see to that.
"""

import collections
import contextlib
import errno
import fcntl
import json
import math
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

CONFIG = "config.json"  # the config that the directory belongs to
ROWS = "rows.py"  # the rows of its own that the run was made with, where its config names some
SPECIAL_IDS = "special_ids.json"  # of a tokenizer beside it that has its own
TOKENIZER = "tokenizer.json"  # so that predicting needs no training data
TOKENIZER_CONFIG = "tokenizer_config.json"  # what an imported one came with, for its export
LABELS = "labels.json"  # the classes or tags, where the model predicts such
INIT_FROM = "init_from.json"  # what was taken from another run, where the config names one
FORK = "fork.json"  # the run and the step that this one branches off from, where it does
PROFILE = "profile.json"  # variances and omega of each sublayer, where the scheme measures them
METRICS = "metrics.jsonl"  # the numbers of training, a step a line
TRACKED = "trackers.json"  # the ids of this run at W&B and MLflow
TENSORBOARD = "tensorboard"  # the same numbers, for TensorBoard
SPIKES = "spikes"  # STEP.npz: the batches whose losses spiked, the first of them
RESULTS = "results.json"  # final scores, status, spikes and the first bad step
SCORED = "checkpoints.jsonl"  # the scores of all checkpoints, one a line
SAMPLES = "samples.txt"  # a few results on the test split
SAMPLED = "samples.jsonl"  # at each evaluation, the results of evaluate.samples
REPLAY = "replay.json"  # what the last replay found
CHECKPOINTS = "checkpoints"  # one folder a step
ERROR = "error.log"  # the traceback of the last error that nobody expected
LOCK = ".lock"  # held by the process that trains here, and naming it

WALL = "time/wall_seconds"  # in records and results: of all processes of the run together

_FOLDERS = (CHECKPOINTS, TENSORBOARD, SPIKES)
# What the fields of results.json are that are not only shown.
_RESULTS = dict(status=str, steps=int, first_bad_step=int | None, spikes=list) | {WALL: int | float}

# How TensorStore, TFDS, NumPy and array_record tell of a full disk: they lose its number.
_FULL = "no space left|disk quota exceeded|requested and .* written|could not submit chunk"

_claims = collections.Counter[Path]()  # of who shares a lock in this process
_held: dict[Path, int] = {}


def check_folders(workdir: Path) -> None:
    """Raises NotADirectoryError where a file takes the place of a folder."""
    for path in (*reversed(workdir.parents), workdir, *map(workdir.joinpath, _FOLDERS)):
        if os.path.lexists(path) and not path.is_dir():
            raise NotADirectoryError(
                f"{path} is not a folder: move it away, or choose another --workdir"
            )


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint of a run."""
    return folder.parent.name == CHECKPOINTS and (folder.parents[1] / CONFIG).exists()


def saved_steps(workdir: Path) -> list[int]:
    """The steps of the checkpoints in a work directory, whole or not."""
    names = (path.name for path in (workdir / CHECKPOINTS).glob("*"))
    return sorted(int(name) for name in names if name.isdecimal())


def is_writable(workdir: Path) -> bool:
    """Whether this process may lock the work directory and write into it."""
    lock = workdir / LOCK
    return os.access(workdir, os.W_OK) and (not lock.exists() or os.access(lock, os.W_OK))


def lock(workdir: str | os.PathLike) -> None:
    """Keeps other processes from locking `workdir` until this one ends, however it ends.

    Locking twice is locking once.

    Raises:
      RuntimeError: a live process has the lock; the message names it.
      PermissionError: the work directory cannot be written.
      FileExistsError: a link takes the lock's place, which could lead to any file.
    """
    path = Path(workdir).resolve() / LOCK
    if path in _held:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A bare descriptor, since a file object would give up the lock when it is collected.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise FileExistsError(f"{path} is a link, and no lock: remove it") from error
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise PermissionError(
            f"{workdir} cannot be written ({error.strerror}): choose another --workdir"
        ) from error
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


def claim(workdir: str | os.PathLike) -> None:
    """Has the lock of `workdir`, taken or yet to be taken, last until as many calls of `unlock`."""
    _claims[Path(workdir).resolve() / LOCK] += 1


def unlock(workdir: str | os.PathLike) -> None:
    """Gives up a `claim`; after the last one, other processes may lock `workdir`."""
    path = Path(workdir).resolve() / LOCK
    _claims[path] -= 1
    if not _claims[path] and (file := _held.pop(path, None)) is not None:
        os.close(file)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A file to write, which then replaces `path`: at any moment that is the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed, or a link to anywhere
    with temporary.open("x", encoding="utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file as a whole, see `replacing`."""
    with replacing(path) as file:
        file.write(text)


def disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk or quota is behind an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if re.search(_FULL, str(error), re.IGNORECASE):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def reading(path: Path, mend: str) -> Iterator[None]:
    """Raises ValueError naming the file, and how to mend it, where what is read of it is broken."""
    try:
        yield
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"{path} is broken ({error}): {mend}") from error


def read_results(workdir: str | os.PathLike) -> dict[str, Any]:
    """The content of results.json; empty where there is none.

    Raises ValueError, with the file, for a broken one.
    """
    path = Path(workdir) / RESULTS
    if not path.exists():
        return {}
    with reading(path, "remove it, and `train` scores the run again"):
        results = json.loads(path.read_text("utf-8"))
        if not isinstance(results, dict):
            raise ValueError("it is not an object with names and values")
        for name in results.keys() & _RESULTS.keys():
            if not isinstance(results[name], _RESULTS[name]):
                raise ValueError(f"{name} cannot be {results[name]!r:.80}")
    return results


def read_fork(workdir: Path) -> dict[str, Any]:
    """The "run" and the "step" that a run is a fork of; empty where it is none."""
    path = workdir / FORK
    with reading(path, "remove it, and the run does not say what it is a fork of"):
        return json.loads(path.read_text("utf-8")) if path.exists() else {}


def read_labels(path: Path) -> tuple[str, ...]:
    """The labels in a labels.json. Raises ValueError, with the file, for a broken one."""
    mend = "copy that of a checkpoint there, or remove it to have it made of the data again"
    with reading(path, mend):
        labels = json.loads(path.read_text("utf-8"))
        if not isinstance(labels, list) or {*map(type, labels)} != {str}:
            raise ValueError("it is not a list of labels")
    return tuple(labels)


def scores(results: Mapping[str, Any]) -> dict[str, float | None]:
    """The scores among the fields of results.json, as "test/bleu"; None: not finite."""
    return {
        name: value
        for name, value in results.items()
        if "/" in name and not name.startswith("time/") and not isinstance(value, str)
    }


def read_metrics(workdir: str | os.PathLike, name: str = METRICS) -> Iterator[dict[str, Any]]:
    """The records of metrics.jsonl, or another such file, in order, one at a time.

    None where there is no file; blank lines are none, nor is a last line that a kill tore. Raises
    ValueError with file and line for any other bad line.
    """
    path, last = Path(workdir) / name, 0
    if not path.exists():
        return
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        for number, line in lines:
            try:
                record = json.loads(line)
                step, wall = record["step"], record.get(WALL, 0.0)
                if not (isinstance(step, int) and last <= step < 2**53 and math.isfinite(wall)):
                    raise ValueError("the step or the time is not a number, or steps do not ascend")
                last = step
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                # A kill leaves the beginning of a record, and a loss of power may leave zeros.
                if next(lines, None) is None and line[:1] in (b"{", b"\0"):
                    return
                raise ValueError(
                    f"{path}:{number} is not a record of a run; remove that line"
                ) from error
            yield record


def read_samples(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """What was written at each evaluation: "step", and "samples", pairs of a line and its results.

    Raises ValueError, with the file, for a broken one.
    """
    path = Path(workdir) / SAMPLED
    with reading(path, "remove it"):
        lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
        records = [json.loads(line) for line in lines]
        for record in records:
            if not isinstance(record["step"], int):
                raise ValueError("a line has no step")
            for line, results in record["samples"]:
                "".join([line, *results])  # raises TypeError where one is no text
    return records


def flatten(config: Any) -> dict[str, Any]:
    """Returns the leaves of a config, or of what a config.json holds, by dotted key, in order."""
    flat = {}
    for name, value in sorted(config.items()):
        if hasattr(value, "items"):  # a section
            flat |= {f"{name}.{key}": leaf for key, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def merged(results: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The results with these fields. New scores of a split replace all that it had.

    They are of one checkpoint and one way to decode; other scores that it had may be of others.
    """
    scored = {name.partition("/")[0] for name in fields} & {"validation", "test"}
    others = {
        name: value for name, value in results.items() if name.partition("/")[0] not in scored
    }
    return {**others, **fields}


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
