"""Checkpoints: saved in the background, whole or passed over. The only importer of Orbax.

All hosts of a job save and restore together. Each writes and reads what its own devices hold; the
first decides which checkpoint counts, and writes all else. What one mesh and number of hosts have
saved any other restores.

DIRECTORY/120/state/         Orbax; a nested dict of plain keys: params/..., opt_state/0/..., and
                             ema_params/... where a moving average of the parameters is kept
DIRECTORY/120/progress.json  step, whether scheduled, data fingerprint, state of every data stream
DIRECTORY/120/config.json    the run's config
DIRECTORY/120/metrics.json   what was measured at this step, if anything was
DIRECTORY/120/manifest.json  size and SHA-256 of every other file; written last
DIRECTORY/120.tmp/           being written or deleted; never read
DIRECTORY/120.old/           being replaced; read only while there is no 120/
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import Float, PyTree

from transformer_jax.devices import hosts

_MANIFEST = "manifest.json"
_locks: dict[Path, int] = {}


class InitReport(NamedTuple):
    """What became of the parameters of a model and of the checkpoint that it starts from, by path.

    taken: in both, with one shape. new: of the model, with nothing taken. left: of the checkpoint,
    each with the reason.
    """

    checkpoint: str
    taken: tuple[str, ...]
    new: tuple[str, ...]
    left: dict[str, str]


@dataclass(frozen=True)
class Restored:
    """A checkpoint read back."""

    step: int
    state: Any
    streams: dict[str, Any]  # the state of each data stream
    fingerprint: str  # of the data


class Checkpoints:
    """The checkpoints of one run: the newest, the last `keep_last` scheduled ones, and the best.

    Scheduled are those that every run saves, however often it is preempted and however long it
    goes on afterwards. Any other counts, for the mean and for the best, only while it is the
    newest: so a run ends with the same checkpoints, mean and best, whether or not it was broken.

    The best is by `best_metric` ("": none is kept). Lower is better for a metric whose name ends
    in "loss" or "perplexity", higher for any other.
    What went wrong in the background is raised by the next call of any method.
    """

    def __init__(self, directory: str | os.PathLike, *, keep_last: int, best_metric: str):
        if keep_last < 1:
            raise ValueError(f"checkpoint.keep_last is {keep_last}; keep at least 1")
        self._directory = Path(directory).absolute()
        self._keep_last = keep_last
        self._best_metric = best_metric
        self._background = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._broken: set[int] = set()

    def save(
        self,
        step: int,
        state: PyTree,
        streams: Mapping[str, Any],
        config: Mapping[str, Any],
        fingerprint: str,
        metrics: Mapping[str, float],
        *,
        scheduled: bool,
    ) -> None:
        """Copies `state` off the devices, then writes it in the background.

        streams: the states of the data streams that this host reads, by their numbers.
        scheduled: whether the step is one that every run of this config saves (see the class).

        The state may be donated as soon as this returns. Waits for the save before it. The
        process must hold the lock of the work directory: leftovers of killed saves are removed.
        """
        self.wait()
        folder = self._directory / f"{step}.tmp"
        with _telling(step, folder):
            if hosts.is_first():
                self._tidy()
                folder.mkdir(parents=True)
            # Also tells the others that the folder is there.
            parts = map(json.loads, hosts.gather("streams", json.dumps(streams)))
            documents = {
                "progress.json": {
                    "step": step,
                    "scheduled": scheduled,
                    "fingerprint": fingerprint,
                    "streams": {stream: state for part in parts for stream, state in part.items()},
                },
                "config.json": config,
            }
            if metrics:
                documents["metrics.json"] = {
                    name: float(value) if math.isfinite(value) else None
                    for name, value in metrics.items()
                }
            # Text now: the caller goes on to change what it handed over.
            texts = {name: json.dumps(content, indent=1) for name, content in documents.items()}
            writer = ocp.AsyncCheckpointer(_handler(), multiprocessing_options=_all_hosts())
            arrays = ocp.args.PyTreeSave(_nested(_keys_to_data(state)))
            writer.save(folder / "state", arrays)
        self._pending = self._background.submit(self._finish, step, folder, texts, writer)

    def restore(self, which: str | int, abstract_state: PyTree) -> Restored | None:
        """The checkpoint `which`: "last", "best" or a step. None if "last" or "best" finds none.

        Broken checkpoints are passed over with a warning, but where all are broken there is no
        None, on which a run would start anew and delete them.
        Arrays go where `abstract_state`'s shardings say, to the default device without one.

        Raises:
          FileNotFoundError: when the step is missing or broken, when no whole checkpoint has the
            best metric, or when there are checkpoints and none is whole.
          OSError: when a checkpoint cannot be read, whole or not.
          ValueError: when shapes, dtypes or structure differ from `abstract_state`.
        """
        folder = self._agreed(which)
        return None if folder is None else _restore(folder, abstract_state)

    def restore_parameters(
        self, which: str | int, abstract_params: PyTree
    ) -> tuple[int, PyTree] | None:
        """(step, parameters) of the checkpoint `which`; None and errors as in `restore`.

        They are the moving average where one was kept, here and in all that reads parameters alone.
        """
        folder = self._agreed(which)
        return None if folder is None else _restore_parameters(folder, abstract_params)

    def average(self, k: int, abstract_params: PyTree) -> tuple[int, PyTree] | None:
        """(newest step, mean of the parameters) over `k` whole checkpoints; None as in `restore`.

        They are the newest one, scheduled or not, and the newest scheduled ones before it. The mean
        is taken in float64. With fewer than `k` it is the mean of those there are.
        Raises what `restore("last")` raises.
        """
        if k < 1:
            raise ValueError(f"checkpoint.average_last is {k}; it must be at least 1")
        self.wait()
        newest = hosts.first(lambda: [str(path) for path in itertools.islice(self._counted(), k)])
        if not newest:
            return None
        if len(newest) < k:
            logging.warning("averaging %d checkpoints, not %d: no more are kept", len(newest), k)
        folders = [Path(path) for path in newest]
        total: PyTree = None
        for folder in folders:
            params = _read_parameters(folder, abstract_params)
            pieces = jax.tree.map(_pieces, params)
            total = pieces if total is None else jax.tree.map(np.add, total, pieces)

        def mean(leaf: Any, pieces: dict[str, Float[np.ndarray, "..."]]) -> jax.Array:
            def piece(index: Any) -> np.ndarray:
                return (pieces[str(index)] / len(folders)).astype(leaf.dtype)

            return jax.make_array_from_callback(leaf.shape, _sharding(leaf), piece)

        step = _progress(folders[0])["step"]
        return step, jax.tree.map(mean, abstract_params, total)

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first. Reads and hashes every file."""
        self.wait()
        return hosts.first(self._whole)

    def wait(self) -> None:
        """Returns when the last save is on disk; raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, then ends the background thread. Nothing can be saved afterwards."""
        try:
            self.wait()
        finally:
            self._background.shutdown()

    def _whole(self) -> list[int]:
        folders = self._folders()
        return [step for step in sorted(folders) if self._is_whole(step, folders[step])]

    def _folders(self) -> dict[int, Path]:
        """Folders by step, broken ones included."""
        found: dict[int, Path] = {}
        # Sorted, "120" comes before "120.old", which counts only without it.
        for path in sorted(self._directory.glob("*")):
            if match := re.fullmatch(r"(0|[1-9]\d*)(\.old)?", path.name):
                found.setdefault(int(match[1]), path)
        return found

    def _is_whole(self, step: int, folder: Path) -> bool:
        fault = _fault(folder)
        if fault is None:
            return True
        self._broken.add(step)
        logging.warning("checkpoint %s is passed over: %s", folder, fault)
        return False

    def _counted(self) -> Iterator[Path]:
        """The newest whole checkpoint, then the scheduled ones before it, newest first.

        Hashes no more checkpoints than are asked for. Raises FileNotFoundError where all of those
        that there are are broken.
        """
        folders = self._folders()
        newest = None
        for step, folder in sorted(folders.items(), reverse=True):
            if not self._is_whole(step, folder):
                continue
            if newest is None:
                newest = step
                if step != max(folders):
                    logging.warning("going on from the older checkpoint of step %d", step)
                yield folder
            elif _progress(folder)["scheduled"]:
                yield folder
        if folders and newest is None:
            raise FileNotFoundError(
                f"none of the checkpoints in {self._directory} is whole (the warnings say why). "
                "Move that folder away to start anew, or choose another --workdir"
            )

    def _agreed(self, which: str | int) -> Path | None:
        """What the first host selects."""
        self.wait()
        found = hosts.first(lambda: str(self._select(which) or ""))
        return Path(found) if found else None

    def _select(self, which: str | int) -> Path | None:
        if which == "last":
            return next(self._counted(), None)
        if which == "best":
            if not self._best_metric:
                raise ValueError(
                    'the best checkpoint is asked for, but checkpoint.best_metric is ""'
                )
            counted = list(self._counted())
            found = self._best(counted)
            if found or not counted:
                return found
            reason = f"no whole checkpoint holds the metric {self._best_metric}"
        elif isinstance(which, int):
            folders = self._folders()
            if which in folders and self._is_whole(which, folders[which]):
                return folders[which]
            reason = f"checkpoint {which} is {'broken' if which in folders else 'missing'}"
        else:
            raise ValueError(f'checkpoint {which!r} is none of "last", "best" and a step')
        listed = ", ".join(map(str, self._whole())) or "none"
        raise FileNotFoundError(f"{reason} in {self._directory}; whole checkpoints: {listed}")

    def _best(self, folders: Iterable[Path]) -> Path | None:
        """Of those that hold the metric; of two equals the earlier."""
        sign = 1 if self._best_metric.endswith(("loss", "perplexity")) else -1
        ranked = []
        for folder in folders:
            value = _metrics(folder).get(self._best_metric)
            if value is not None:
                ranked.append((sign * value, _progress(folder)["step"], folder))
        return min(ranked)[-1] if ranked else None

    def _finish(
        self, step: int, folder: Path, texts: dict[str, str], writer: ocp.AsyncCheckpointer
    ) -> None:
        """What is left of a save once the arrays are copied; runs in the background thread."""
        with _telling(step, folder):
            with _quiet(), contextlib.closing(writer):
                writer.wait_until_finished()  # of all hosts
            if hosts.is_first():
                for name, text in texts.items():
                    (folder / name).write_text(text)
                _write_manifest(folder)
                self._publish(folder, step)
        if hosts.is_first():
            self._prune(step)  # what goes wrong with others does not harm what is saved
        hosts.gather("saved", "")

    def _tidy(self) -> None:
        """Removes what killed processes left behind."""
        for path in self._directory.glob("*.tmp"):
            shutil.rmtree(path)
        for path in self._directory.glob("*.old"):
            if path.with_suffix("").exists():
                shutil.rmtree(path)
            else:
                path.rename(path.with_suffix(""))

    def _publish(self, folder: Path, step: int) -> None:
        final = self._directory / str(step)
        replaced = final.with_suffix(".old")
        if final.exists():
            final.rename(replaced)
        folder.rename(final)
        _sync(self._directory)
        self._broken.discard(step)
        if replaced.exists():
            shutil.rmtree(replaced)

    def _prune(self, saved: int) -> None:
        """Keeps what the class promises, `saved` being the newest; a broken one has no place."""
        folders = self._folders()
        whole = [
            folder
            for step, folder in sorted(folders.items())
            if step not in self._broken and _fault(folder, hash_state=False) is None
        ]
        scheduled = [folder for folder in whole if _progress(folder)["scheduled"]]
        # Not the best of all: the newest may be better, and will not count when it has a successor.
        keep = {folders[saved], *scheduled[-self._keep_last :], self._best(scheduled)}
        for folder in set(folders.values()) - keep:
            # Renamed first: killed halfway, it is a leftover and not half a checkpoint.
            shutil.rmtree(folder.rename(folder.with_suffix(".tmp")))


def restore_parameters_from(path: str | os.PathLike, abstract_params: PyTree) -> tuple[int, PyTree]:
    """(step, parameters) of the checkpoint in the folder `path`, such as runs/a/checkpoints/120.

    Raises FileNotFoundError where it is missing or broken, ValueError where it does not match.
    """
    folder = Path(path).absolute()
    if fault := hosts.first(lambda: _fault(folder)):
        raise FileNotFoundError(f"{folder} is not a whole checkpoint: {fault}")
    return _restore_parameters(folder, abstract_params)


def init_from(
    path: str | os.PathLike, params: PyTree, *, labels: Sequence[str] = ()
) -> tuple[PyTree, InitReport]:
    """`params` with what fits of another run's, and what became of each.

    path: a work directory, whose newest checkpoint counts, or the folder of a checkpoint. A leaf
    is taken where path and shape are equal; it gets the dtype and sharding of the one it replaces.
    The head of labels is taken only where that run's labels.json lists the same `labels`.

    Raises:
      FileNotFoundError: when there is no whole checkpoint.
      ValueError: when nothing fits.
    """
    start = Path(path).expanduser().absolute()
    folder = Path(hosts.first(lambda: str(_newest_or_itself(start))))
    saved = _saved(folder)
    name = _evaluated(saved)
    ours, theirs = _flat(params), _flat(saved[name])
    left = {path: reason for path in theirs if (reason := _misfit(theirs[path], ours.get(path)))}
    if _labels(folder) != list(labels):
        heads = [path for path in theirs if path.startswith("label_head/") and path not in left]
        left |= dict.fromkeys(heads, "it is of other labels")
    taken = tuple(path for path in theirs if path not in left)
    if not taken:
        raise ValueError(
            f"no parameter of {folder} is one of this model's, for its architecture and sizes "
            "differ: " + "; ".join(f"{path}: {reason}" for path, reason in list(left.items())[:4])
        )
    wanted = _map_paths(lambda path, leaf: leaf if path in taken else None, params)
    found = _flat(_load(folder, {name: wanted})[name])

    def replace(path: str, leaf: jax.Array) -> jax.Array:
        return found[path].astype(leaf.dtype) if path in found else leaf

    result = _map_paths(replace, params)
    new = tuple(path for path in ours if path not in found)
    return result, InitReport(str(folder), taken, new, left)


def format_report(report: InitReport) -> str:
    """The report as lines of text: counts first, then the paths of each kind."""
    checkpoint, taken, new, left = report
    counts = f"{len(taken)} parameters taken, {len(new)} new, {len(left)} left"
    lines = [f"from {checkpoint}: {counts}"]
    lines += [f"  taken  {path}" for path in taken]
    lines += [f"  new    {path}" for path in new]
    lines += [f"  left   {path}: {reason}" for path, reason in left.items()]
    return "\n".join(lines)


def lock_workdir(workdir: str | os.PathLike) -> None:
    """Keeps other jobs from training in `workdir` until this one ends, however it ends.

    Locking twice is locking once. Of a job's hosts the first holds the lock, which the others must
    see.

    Raises:
      RuntimeError: a live process has it, which is named.
      FileNotFoundError: the hosts have each a folder of this name, and not one in common.
    """
    path = Path(workdir).resolve() / ".lock"
    if hosts.is_first() and path not in _locks:
        _locks[path] = _lock(path, workdir)
    hosts.gather("lock", "")
    if not path.exists():
        raise FileNotFoundError(
            f"host {hosts.index()} does not see what host 0 has written into {workdir}: the hosts "
            "of a job need a --workdir that they share, as a network file system or a mounted "
            "bucket"
        )


def _lock(path: Path, workdir: str | os.PathLike) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A bare descriptor, since a file object would give up the lock when it is collected.
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 1000).decode()
        os.close(lock)
        raise RuntimeError(
            f"{workdir} is in use by {holder or 'another process'}; wait for it or stop it, or "
            "choose another --workdir"
        ) from None
    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
    os.fsync(lock)  # so that other hosts see it, also through a mounted bucket
    return lock


def _progress(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "progress.json").read_text())


def _metrics(folder: Path) -> dict[str, float | None]:
    path = folder / "metrics.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _restore(folder: Path, abstract_state: PyTree) -> Restored:
    _check_match(folder, _saved(folder), _stored(abstract_state))
    progress = _progress(folder)
    return Restored(
        step=progress["step"],
        state=_load(folder, abstract_state),
        streams=progress["streams"],
        fingerprint=progress["fingerprint"],
    )


def _restore_parameters(folder: Path, abstract_params: PyTree) -> tuple[int, PyTree]:
    return _progress(folder)["step"], _read_parameters(folder, abstract_params)


def _read_parameters(folder: Path, abstract_params: PyTree) -> PyTree:
    saved = _saved(folder)
    name = _evaluated(saved)
    _check_match(folder, {name: saved[name]}, {name: abstract_params})
    return _load(folder, {name: abstract_params})[name]


def _saved(folder: Path) -> dict[str, Any]:
    """The nested dict that a checkpoint holds, with shapes and dtypes for arrays."""
    with ocp.Checkpointer(_handler()) as reader:
        return reader.metadata(folder / "state").item_metadata.tree


def _evaluated(saved: dict[str, Any]) -> str:
    """Where the parameters lie that are to be scored: the moving average where there is one."""
    return "ema_params" if "ema_params" in saved else "params"


def _load(folder: Path, abstract: PyTree) -> PyTree:
    """The leaves of `abstract`, all of which must be there, in its structure and shardings."""
    stored = _stored(abstract)
    item = _nested(stored)
    arguments = ocp.args.PyTreeRestore(
        item=item,
        restore_args=jax.tree.map(lambda leaf: ocp.ArrayRestoreArgs(sharding=leaf.sharding), item),
        partial_restore=True,
    )
    with ocp.Checkpointer(_handler(), multiprocessing_options=_all_hosts()) as reader:
        arrays = _flat(reader.restore(folder / "state", arguments))
    return _map_paths(lambda path, leaf: _as_key(arrays[path], leaf), abstract)


def _handler() -> ocp.PyTreeCheckpointHandler:
    return ocp.PyTreeCheckpointHandler(multiprocessing_options=_all_hosts())


def _all_hosts() -> ocp.options.MultiprocessingOptions:
    # Where they are named they meet at barriers of the coordination service. Otherwise they would
    # meet in a computation on the devices, from the background and so in any order with training's.
    return ocp.options.MultiprocessingOptions(active_processes=set(range(hosts.count())))


def _newest_or_itself(path: Path) -> Path:
    """The newest whole checkpoint of a work directory, or `path` as a checkpoint's own folder."""
    if (path / "checkpoints").is_dir():
        checkpoints = Checkpoints(path / "checkpoints", keep_last=1, best_metric="")
        if newest := next(checkpoints._counted(), None):
            return newest
        raise FileNotFoundError(f"there is no checkpoint in {path} to start from")
    if fault := _fault(path):
        raise FileNotFoundError(
            f"{path} is neither a work directory nor a whole checkpoint to start from: {fault}"
        )
    return path


def _labels(folder: Path) -> list[str]:
    """The labels of the run that a checkpoint's folder W/checkpoints/STEP belongs to."""
    file = folder.parents[1] / "labels.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else []


def _misfit(saved: Any, ours: Any | None) -> str | None:
    """Why a saved parameter cannot be taken, or None."""
    if ours is None:
        return "no such parameter"
    if tuple(saved.shape) != ours.shape:
        return f"its shape {tuple(saved.shape)} is not {ours.shape}"
    return None


def _check_match(folder: Path, saved: PyTree, expected: PyTree) -> None:
    def describe(leaf: Any) -> str:
        return "nothing" if leaf is None else f"{tuple(leaf.shape)} {np.dtype(leaf.dtype)}"

    differences = []
    there, asked = _flat(saved), _flat(expected)
    for path in sorted(there.keys() | asked.keys()):
        found, wanted = describe(there.get(path)), describe(asked.get(path))
        if found != wanted:
            differences.append(f"{path}: saved {found}, expected {wanted}")
    if differences:
        more = f"\n  and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise ValueError(
            f"the checkpoint {folder} does not fit the model and optimizer of this config, or is "
            "of another version of this code:\n  " + "\n  ".join(differences[:8]) + more
        )


def _pieces(array: jax.Array) -> dict[str, Float[np.ndarray, "..."]]:
    """What this host's devices hold of an array, by place, each piece once."""
    return {str(s.index): np.asarray(s.data, np.float64) for s in array.addressable_shards}


def _sharding(leaf: Any) -> jax.sharding.Sharding:
    return leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _stored(abstract: PyTree) -> PyTree:
    """What is stored of the leaves: shapes, dtypes and shardings, of random keys their words."""

    def of(leaf: Any) -> jax.ShapeDtypeStruct:
        words = jax.eval_shape(_keys_to_data, leaf)
        return jax.ShapeDtypeStruct(words.shape, words.dtype, sharding=_sharding(leaf))

    return jax.tree.map(of, abstract)


def _as_key(array: jax.Array, leaf: Any) -> jax.Array:
    """The array, or where `leaf` is one the random key of these words."""
    if not _is_key(leaf):
        return array
    implementation = jax.random.key_impl(jnp.empty((), leaf.dtype))
    return jax.random.wrap_key_data(array, impl=implementation)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _keys_to_data(tree: PyTree) -> PyTree:
    """Typed random keys as their uint32 words."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _flat(tree: PyTree) -> dict[str, Any]:
    """Leaves by path, such as params/decoder/self_attention/query."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _map_paths(f: Callable[[str, Any], Any], tree: PyTree) -> PyTree:
    """f(path, leaf) in the place of every leaf, the paths being those of `_flat`."""
    return jax.tree.unflatten(
        jax.tree.structure(tree), [f(path, leaf) for path, leaf in _flat(tree).items()]
    )


def _nested(tree: PyTree) -> dict[str, Any]:
    """The same leaves in dicts with plain keys, free of the classes of Flax and Optax."""
    nested: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        *parents, name = (jax.tree_util.keystr((entry,), simple=True) for entry in path)
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return nested


def _write_manifest(folder: Path) -> None:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        # On disk before the manifest says so, since older checkpoints are deleted on its word.
        _sync(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1))
    _sync(manifest)
    _sync(folder)


def _fault(folder: Path, *, hash_state: bool = True) -> str | None:
    """Why `folder` is not a whole checkpoint, or None. Unhashed, the state's sizes are checked.

    Raises OSError where that cannot be read: a disk that does not answer is no fault of it, for
    which it would be passed over and removed.
    """
    name = _MANIFEST
    try:
        files = json.loads((folder / name).read_text())["files"]
        for name, file in files.items():
            path = folder / name
            if (size := path.stat().st_size) != file["size"]:
                return f"{name} has {size} bytes, the manifest says {file['size']}"
            if (hash_state or not name.startswith("state/")) and _sha256(path) != file["sha256"]:
                return f"the content of {name} has changed since it was saved (SHA-256 differs)"
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {_MANIFEST} cannot be parsed"
    except OSError as error:
        raise OSError(
            error.errno,
            f"a checkpoint cannot be read, and is kept as it is ({error.strerror}, of {name}): run "
            "the same command again when it can be",
            str(folder),
        ) from error
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Waits until a file or a folder's entries are on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _telling(step: int, folder: Path) -> Iterator[None]:
    """Says what the save was of that failed, and removes what there is of it."""
    try:
        yield
    except Exception as error:
        if hosts.is_first():
            shutil.rmtree(folder, ignore_errors=True)
        if _disk_full(error):
            raise OSError(
                errno.ENOSPC,
                f"no space left for the checkpoint of step {step}; older checkpoints are "
                "untouched. Free some space and run again, or lower checkpoint.keep_last",
                str(folder.parent),
            ) from error
        raise RuntimeError(f"the checkpoint of step {step} was not saved: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax also logs the tracebacks of what it raises, one for each of its threads."""

    def is_not_orbax_error(record: Any) -> bool:
        return record.levelname != "ERROR" or "orbax" not in Path(record.pathname).parts

    logger = logging.get_absl_logger()
    logger.addFilter(is_not_orbax_error)
    try:
        yield
    finally:
        logger.removeFilter(is_not_orbax_error)


def _disk_full(error: BaseException | None) -> bool:
    """Whether a full disk or quota is behind `error`; TensorStore reports it only as text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if re.search("no space left on device|disk quota exceeded", str(error), re.IGNORECASE):
            return True
        error = error.__cause__ or error.__context__
    return False
