"""The checkpoints of a run: saved in the background, passed over where broken, pruned.

All hosts of a job save and restore together. Each writes and reads what its own devices hold; the
first decides which checkpoint counts, and writes everything else. Any mesh and number of hosts can
restore what another one has saved.

DIRECTORY/120/state/         the arrays (see `arrays`): params/..., opt_state/0/..., and
                             ema_params/... where a moving average of the parameters is kept
DIRECTORY/120/progress.json  step, whether scheduled, records in the log, fingerprints of the data
                             and the tokenizer, state of every data stream
DIRECTORY/120/config.json    the run's config
DIRECTORY/120/labels.json    the labels, where the model predicts such
DIRECTORY/120/metrics.json   what was measured at this step, if anything was
DIRECTORY/120/manifest.json  size and SHA-256 of every other file (see `manifest`); written last
DIRECTORY/120.tmp/           being written or deleted; never read
DIRECTORY/120.old/           being replaced; read only while there is no 120/
"""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from absl import logging
from jaxtyping import PyTree

from transformer_jax.checkpoint import arrays
from transformer_jax.process import hosts
from transformer_jax.runs import manifest
from transformer_jax.runs.workdir import CONFIG, LABELS, disk_is_full, plain, read_labels

PROGRESS = "progress.json"
_METRICS = "metrics.json"


@dataclass(frozen=True)
class Origin:
    """What a checkpoint was trained with: with anything else its parameters mean nothing.

    Attributes:
      data, tokenizer: fingerprints of the training batches, and of what decides the token ids.
      scored: those of the examples of the splits that are scored, where they were.
    """

    config: Mapping[str, Any]
    data: str
    tokenizer: str
    labels: tuple[str, ...]
    scored: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Restored:
    """A checkpoint read back."""

    step: int
    state: Any
    streams: dict[str, Any]  # the state of each data stream
    records: int  # that the log had


class Checkpoints:
    """The checkpoints of one run: the newest, the last `keep_last` scheduled ones, and the best.

    Those of steps for which `stays` holds stay too. Scheduled are those that every run saves,
    however often it is preempted and however long it continues afterwards. Any other counts, for
    the mean and for the best, only while it is the newest. So a run ends with the same checkpoints,
    mean and best, whether or not it was broken.

    `best_metric` decides which one is the best; where it is "", none is kept. Higher is better for
    a metric whose name ends in "accuracy", lower for any other, as losses and errors.

    An error in the background is raised by the next call of any method.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        keep_last: int,
        best_metric: str,
        stays: Callable[[int], bool] = lambda step: False,
    ):
        self._directory = Path(directory).absolute()
        self._stays = stays
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
        origin: Origin,
        metrics: Mapping[str, float],
        *,
        scheduled: bool,
        records: int,
    ) -> None:
        """Copies `state` off the devices, then writes it in the background.

        streams: the states of the data streams that this host reads, by their numbers.
        scheduled: whether the step is one that every run of this config saves (see the class).
        records: how many the log has, so that a restart notices when some are lost.

        Waits for the save before this one. The state may be donated as soon as this returns. The
        process must hold the lock of the work directory, since this removes what killed saves have
        left behind.
        """
        self.wait()
        folder = self._directory / f"{step}.tmp"
        with _naming(step, folder):
            if hosts.is_first():
                self._remove_leftovers()
                folder.mkdir(parents=True)
            # Also tells the others that the folder is there.
            parts = map(json.loads, hosts.gather("streams", json.dumps(streams)))
            documents = {
                PROGRESS: {
                    "step": step,
                    "scheduled": scheduled,
                    "records": records,
                    "data": origin.data,
                    "tokenizer": origin.tokenizer,
                    "scored": dict(origin.scored),
                    "streams": {stream: state for part in parts for stream, state in part.items()},
                },
                CONFIG: origin.config,
            }
            if origin.labels:
                documents[LABELS] = list(origin.labels)
            if metrics:
                documents[_METRICS] = plain(metrics)
            # Text now, since the caller will change what it has passed.
            texts = {name: json.dumps(content, indent=1) for name, content in documents.items()}
            finish_arrays = arrays.save(folder, state)
        self._pending = self._background.submit(self._finish, step, folder, texts, finish_arrays)

    def find(self, which: int | Literal["last", "best"]) -> Path | None:
        """The folder of "last", "best" or a step, on all hosts; None: there is no last or best.

        Broken checkpoints are passed over with a warning. Where all are broken this raises: on None
        a run would start anew and delete them.

        Raises:
          FileNotFoundError: when the step is missing or broken, when no whole checkpoint has the
            best metric, or when there are checkpoints and none is whole.
          OSError: when a checkpoint cannot be read, whole or not.
        """
        self.wait()
        folder = hosts.first(lambda: str(self._select(which) or ""))
        return Path(folder) if folder else None

    def newest(self, k: int) -> list[Path]:
        """The newest whole checkpoint, scheduled or not, then the newest scheduled ones before it.

        `k` of them, or as many as there are. Raises what `find("last")` raises.
        """
        self.wait()
        folders = hosts.first(lambda: [str(path) for path in itertools.islice(self._counted(), k)])
        if 0 < len(folders) < k:
            logging.warning("averaging %d checkpoints, not %d: no more are kept", len(folders), k)
        return [Path(path) for path in folders]

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, oldest first. Reads and hashes every file."""
        self.wait()
        return hosts.first(self._whole)

    def after(self, step: int) -> list[int]:
        """Steps of the whole checkpoints after one, oldest first; of arrays the sizes are read."""
        self.wait()
        return hosts.first(lambda: [other for other in self._sound() if other > step])

    def wait(self) -> None:
        """Returns when the last save is on disk. Raises RuntimeError or OSError if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def tidy(self, newest: int) -> None:
        """Removes what a process has left behind that was killed after its last save.

        The next save does it otherwise, which takes the same lock. newest: the newest whole step.
        """
        self._remove_leftovers()
        self._prune(newest)

    def close(self) -> None:
        """Waits, then ends the background thread. Nothing can be saved afterwards."""
        try:
            self.wait()
        finally:
            self._background.shutdown()

    def _whole(self) -> list[int]:
        folders = self._folders()
        return [step for step in sorted(folders) if self._is_whole(step, folders[step])]

    def _sound(self) -> dict[int, Path]:
        """The whole ones, oldest first. Arrays are checked by their sizes: hashing takes long."""
        return {
            step: folder
            for step, folder in sorted(self._folders().items())
            if step not in self._broken and fault(folder, unhashed=arrays.STATE) is None
        }

    def _folders(self) -> dict[int, Path]:
        """Folders by step, broken ones included."""
        folders: dict[int, Path] = {}
        # Sorted, "120" comes before "120.old", which counts only without it.
        for path in sorted(self._directory.glob("*")):
            if match := re.fullmatch(r"(0|[1-9]\d*)(\.old)?", path.name):
                folders.setdefault(int(match[1]), path)
        return folders

    def _is_whole(self, step: int, folder: Path) -> bool:
        reason = fault(folder)
        if reason is None:
            return True
        self._broken.add(step)
        logging.warning("checkpoint %s is passed over: %s", folder, reason)
        return False

    def _counted(self) -> Iterator[Path]:
        """The newest whole checkpoint, then the scheduled ones before it, newest first.

        Hashes no more checkpoints than are asked for. Raises FileNotFoundError where there are
        checkpoints and all are broken.
        """
        folders = self._folders()
        newest = None
        for step, folder in sorted(folders.items(), reverse=True):
            if not self._is_whole(step, folder):
                continue
            if newest is None:
                newest = step
                if step != max(folders):
                    logging.warning("continuing from the older checkpoint of step %d", step)
                yield folder
            elif _progress(folder)["scheduled"]:
                yield folder
        if folders and newest is None:
            raise FileNotFoundError(
                f"none of the checkpoints in {self._directory} is whole (the warnings say why). "
                "Move that folder away to start anew, or choose another --workdir"
            )

    def _select(self, which: int | Literal["last", "best"]) -> Path | None:
        if which == "last":
            return next(self._counted(), None)
        if which == "best":
            if not self._best_metric:
                raise ValueError(
                    'the best checkpoint is asked for, but checkpoint.best_metric is ""'
                )
            counted = list(self._counted())
            best = self._best(counted)
            if best or not counted:
                return best
            reason = f"no whole checkpoint holds the metric {self._best_metric}"
        else:
            folders = self._folders()
            if which in folders and self._is_whole(which, folders[which]):
                return folders[which]
            reason = f"checkpoint {which} is {'broken' if which in folders else 'missing'}"
        listed = ", ".join(map(str, self._whole())) or "none"
        raise FileNotFoundError(f"{reason} in {self._directory}; whole checkpoints: {listed}")

    def _best(self, folders: Iterable[Path]) -> Path | None:
        """The best of the checkpoints that hold the metric; of two equals the earlier."""
        sign = -1 if self._best_metric.endswith("accuracy") else 1
        ranked = []
        for folder in folders:
            path = folder / _METRICS
            metrics = json.loads(path.read_text()) if path.exists() else {}
            if (value := metrics.get(self._best_metric)) is not None:
                ranked.append((sign * value, _progress(folder)["step"], folder))
        return min(ranked)[-1] if ranked else None

    def _finish(
        self, step: int, folder: Path, texts: dict[str, str], finish_arrays: Callable[[], None]
    ) -> None:
        """Does what is left of a save once the arrays are copied, in the background thread."""
        with _naming(step, folder):
            finish_arrays()
            if hosts.is_first():
                for name, text in texts.items():
                    (folder / name).write_text(text)
                manifest.write(folder)
                self._publish(folder, step)
        if hosts.is_first():
            self._prune(step)  # an error here is about others: what is saved stays
        hosts.gather("saved", "")

    def _remove_leftovers(self) -> None:
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
        manifest.sync(self._directory)
        self._broken.discard(step)
        if replaced.exists():
            shutil.rmtree(replaced)

    def _prune(self, saved: int) -> None:
        """Deletes all but what the class promises to keep, broken ones too. saved: the newest."""
        folders = self._folders()
        scheduled = [path for path in self._sound().values() if _progress(path)["scheduled"]]
        # The best of the scheduled ones: the newest may be better, and will not count later.
        keep = {folders[saved], *scheduled[-self._keep_last :], self._best(scheduled)}
        keep |= {folder for step, folder in folders.items() if self._stays(step)}
        for folder in set(folders.values()) - keep:
            # Renamed first: after a kill it is a leftover rather than half a checkpoint.
            shutil.rmtree(folder.rename(folder.with_suffix(".tmp")))


def fault(folder: Path, *, unhashed: str | None = None) -> str | None:
    """Why the folder is not a whole checkpoint, or None (see `manifest.fault`)."""
    needed = (PROGRESS, CONFIG, arrays.STATE)
    if reason := manifest.fault(folder, needed=needed, unhashed=unhashed):
        return reason
    if folder.stem.isdecimal() and folder.stem != str(step := _progress(folder)["step"]):
        return f"it is of step {step}, so the folder was renamed"
    return None


def whole(path: str | os.PathLike) -> Path:
    """The folder of a checkpoint, such as runs/a/checkpoints/120, wherever it lies.

    Raises FileNotFoundError where it is missing or broken.
    """
    folder = Path(path).absolute()
    if reason := hosts.first(lambda: fault(folder)):
        raise FileNotFoundError(f"{folder} is not a whole checkpoint: {reason}")
    return folder


def origin(folder: Path) -> Origin:
    """What a whole checkpoint was trained with; ValueError where it does not say so."""
    progress, labels = _progress(folder), folder / LABELS
    try:
        return Origin(
            config=json.loads((folder / CONFIG).read_text()),
            data=progress["data"],
            tokenizer=progress["tokenizer"],
            labels=read_labels(labels) if labels.exists() else (),
            scored=progress.get("scored", {}),
        )
    except KeyError as error:
        raise ValueError(
            f"the checkpoint {folder} does not say which {error.args[0]} it was trained with, for "
            "an older version of this code saved it: use that one, or train in another --workdir"
        ) from error


def step_of(folder: Path) -> int:
    """The step of a whole checkpoint."""
    return _progress(folder)["step"]


def restore(folder: Path, abstract_state: PyTree) -> Restored:
    """The whole checkpoint in a folder.

    Arrays go where `abstract_state`'s shardings say, to the default device without one. Raises
    ValueError when shapes, dtypes or structure differ from `abstract_state`.
    """
    arrays.check_match(folder, arrays.saved(folder), abstract_state)
    progress = _progress(folder)
    return Restored(
        step=progress["step"],
        state=arrays.load(folder, abstract_state),
        streams=progress["streams"],
        records=progress["records"],
    )


def load_parameters(folders: Sequence[Path], params: PyTree, dtype: str | None = None) -> PyTree:
    """The parameters of a whole checkpoint, or the mean over several, computed in float64.

    They are the moving average where one was kept, here and wherever parameters are read alone.

    params: their shapes, dtypes and shardings. dtype: what they are rounded to, each as it is read.

    Raises ValueError when shapes, dtypes or structure differ from those of `params`.
    """

    def load(folder: Path, dtype: str | None = None) -> PyTree:
        saved = arrays.saved(folder)
        name = evaluated(saved)
        arrays.check_match(folder, {name: saved[name]}, {name: params})
        return arrays.load(folder, {name: params}, dtype)[name]

    if len(folders) == 1:
        return load(folders[0], dtype)
    return arrays.mean(map(load, folders), params, dtype)


def evaluated(saved: Mapping[str, Any]) -> str:
    """Where a checkpoint has the parameters to score: the moving average where one was kept."""
    return "ema_params" if "ema_params" in saved else "params"


def _progress(folder: Path) -> dict[str, Any]:
    return json.loads((folder / PROGRESS).read_text())


@contextlib.contextmanager
def _naming(step: int, folder: Path) -> Iterator[None]:
    """Names the checkpoint whose save failed and removes its partial files."""
    try:
        yield
    except Exception as error:
        if hosts.is_first():
            shutil.rmtree(folder, ignore_errors=True)
        if disk_is_full(error):
            raise OSError(
                errno.ENOSPC,
                f"no space left for the checkpoint of step {step}; older checkpoints are "
                "untouched. Free some space and run again, or lower checkpoint.keep_last",
                str(folder.parent),
            ) from error
        raise RuntimeError(f"the checkpoint of step {step} was not saved: {error}") from error
