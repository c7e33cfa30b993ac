"""Weights & Biases and MLflow: the numbers of metrics.jsonl, for those who look at runs there.

Both are optional. A library is imported only where `log.trackers` names it, and reads the server,
project and credentials from its own environment variables. A tracker that does not work ends a run
before anything is compiled; one that breaks later is warned of once, and training continues.
"""

import importlib
import importlib.util
import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from absl import logging

from transformer_jax.runs.workdir import TRACKERS_FILE, plain, scores, write_atomically

_PROJECT = "transformer_jax"  # unless the environment names another one
_FINISHED = ("finished", "plateaued")  # runs that have made all their steps


class Session(Protocol):
    """A run that is open at a tracker. `id`: by which another process opens it again."""

    id: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def finish(self, status: str, scores: Mapping[str, float]) -> None: ...


class Tracker(NamedTuple):
    """What there is to a tracker.

    package: of PyPI, and the extra of pyproject.toml; what is imported has the same name.
    check: raises where no run could be opened, as without login or network.
    open: (work directory, id of a run to continue or None, config by dotted key) -> a session.
    """

    package: str
    check: Callable[[], None]
    open: Callable[[Path, str | None, Mapping[str, Any]], Session]


def check(names: Iterable[str]) -> None:
    """Raises RuntimeError where a tracker is not installed or cannot be reached."""
    for name in names:
        package = TRACKERS[name].package
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(
                f"log.trackers={name!r} needs the package {package}, which is not installed: "
                f"{sys.executable} -m pip install {package}, or leave it out"
            )
        try:
            TRACKERS[name].check()
        except Exception as error:
            raise RuntimeError(_useless(name, error)) from error


class Trackers:
    """The sessions of one run, which its next process continues."""

    def __init__(
        self,
        names: Sequence[str],
        workdir: Path,
        config: Mapping[str, Any],
        records: Sequence[Mapping[str, Any]],
        logged: int,
    ):
        """Opens the sessions, and sends those of the records that a tracker lacks.

        records: of metrics.jsonl, up to the step from which training continues. Steps that come
        again are not sent again, since all but time/* is what it was. logged: the last step that
        was written there, for runs whose trackers.json is older and does not say what was sent.

        Raises:
          RuntimeError: one cannot be opened.
        """
        self._path = workdir / TRACKERS_FILE
        self._sessions: dict[str, Session] = {}
        self._sent: dict[str, int] = {}  # by earlier processes: the last step
        self._entries = _known(self._path) if names else {}
        for name in names:
            entry = self._entries.get(name, {"id": None, "sent": 0})
            id, sent = entry["id"], entry.get("sent", entry.get("broken_after", logged))
            try:
                session = TRACKERS[name].open(workdir, id, plain(config))
            except Exception as error:
                raise RuntimeError(_useless(name, error)) from error
            self._sessions[name] = session
            self._sent[name] = sent
            self._entries[name] = {"id": session.id, "sent": sent}
        self._save()
        for record in records:
            self._send(record)
        self._save()

    def log(self, record: Mapping[str, Any]) -> None:
        """Sends a record of metrics.jsonl, and notes that it was sent.

        The entries of a vector go by their number from 0.
        """
        if self._sessions:
            self._send(record)
            self._save()

    def _send(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        values = dict(_flat(record))
        for name, session in list(self._sessions.items()):
            if step > self._sent[name]:
                self._guard(name, step, lambda session=session: session.log(step, values))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Ends the sessions with the status and the scores of results.json."""
        status = results.get("status", "failed")
        status = "failed" if status == "running" else status
        numbers = {name: value for name, value in _flat(scores(results))}
        for name, session in list(self._sessions.items()):
            self._guard(name, None, lambda session=session: session.finish(status, numbers))
        self._sessions = {}

    def _guard(self, name: str, step: int | None, call: Callable[[], None]) -> None:
        """Calls it; where that fails, warns and lets go of the tracker."""
        try:
            call()
            if step is not None:
                self._entries[name]["sent"] = step
        except Exception as error:
            logging.warning(
                "log.trackers: %s failed (%s); training continues without it, and metrics.jsonl "
                "has all numbers. The next start of this run sends it what is missing.",
                name,
                _first_line(error),
            )
            del self._sessions[name]
            if step is not None:
                # The records of a step may be several, and are sent anew together.
                self._entries[name]["sent"] = step - 1

    def _save(self) -> None:
        if self._entries:
            write_atomically(self._path, json.dumps(self._entries, indent=1) + "\n")


def _known(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return json.loads(path.read_text("utf-8")) if path.exists() else {}
    except ValueError as error:
        raise ValueError(
            f"{path} is broken ({error}): remove it, and trackers get this run as a new one"
        ) from error


def _flat(record: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in plain(record).items():
        if name == "step":
            continue
        numbers = (
            {f"{name}/{at}": entry for at, entry in enumerate(value)}
            if (isinstance(value, list))
            else {name: value}
        )
        for key, number in numbers.items():
            yield key, math.nan if number is None else float(number)


def _useless(name: str, error: Exception) -> str:
    return (
        f"log.trackers={name!r} does not work: {_first_line(error)}. Mend it, or leave it out: "
        "metrics.jsonl has all numbers"
    )


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0].rstrip(". ")
    return f"{type(error).__name__}: {text[:300]}"


# Weights & Biases --------------------------------------------------------------------------------


def _check_wandb() -> None:
    wandb: Any = importlib.import_module("wandb")
    if os.environ.get("WANDB_MODE", "online") == "online":
        wandb.login(verify=True, timeout=20)


class _Wandb:
    def __init__(self, workdir: Path, id: str | None, config: Mapping[str, Any]):
        wandb: Any = importlib.import_module("wandb")
        self.id = id or uuid.uuid4().hex[:12]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=workdir.absolute().name,
            dir=str(workdir.absolute()),
            id=self.id,
            resume="allow",
            config=dict(config),
            # Standard output is left alone, and no end of a run waits for a network that is gone.
            settings=wandb.Settings(console="off", finish_timeout=60),
        )
        self._run.config.update(dict(config), allow_val_change=True)  # a rerun may change some

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self._run.summary.update({"status": status} | _results(scores))
        if status == "preempted":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status in _FINISHED else 1)


# MLflow ------------------------------------------------------------------------------------------

_BATCH = 1000  # metrics of one request at most
_PARAMS = 100  # likewise, of a config's keys


def _mlflow_client() -> Any:
    # By default it tries for minutes, in which training would stand still.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    return importlib.import_module("mlflow").MlflowClient()


class _Mlflow:
    def __init__(self, workdir: Path, id: str | None, config: Mapping[str, Any]):
        self._client = _mlflow_client()
        self._metric = importlib.import_module("mlflow.entities").Metric
        if id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            found = self._client.get_experiment_by_name(name)
            where = found.experiment_id if found else self._client.create_experiment(name)
            id = self._client.create_run(where, run_name=workdir.absolute().name).info.run_id
            param = importlib.import_module("mlflow.entities").Param
            rows = [param(key, json.dumps(value)) for key, value in config.items()]
            for start in range(0, len(rows), _PARAMS):
                self._client.log_batch(id, params=rows[start : start + _PARAMS])
        else:
            self._client.update_run(id, status="RUNNING")
        self.id = str(id)
        # Parameters cannot change; what a rerun changes of the config is in this file.
        self._client.log_dict(self.id, dict(config), "config.json")
        self._step = 0

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        rows = [self._metric(name, value, now, step) for name, value in values.items()]
        for start in range(0, len(rows), _BATCH):
            self._client.log_batch(self.id, metrics=rows[start : start + _BATCH])
        self._step = step

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self._client.set_tag(self.id, "status", status)
        self.log(self._step, _results(scores))
        ended = "KILLED" if status == "preempted" else "FAILED"
        self._client.set_terminated(self.id, "FINISHED" if status in _FINISHED else ended)


def _results(scores: Mapping[str, float]) -> dict[str, float]:
    """Final scores, apart from those that were logged on the way under the same names."""
    return {f"results/{name}": value for name, value in scores.items()}


# Their names are what `log.trackers` may hold.
TRACKERS: Mapping[str, Tracker] = {
    "wandb": Tracker("wandb", _check_wandb, _Wandb),
    "mlflow": Tracker(
        "mlflow", lambda: _mlflow_client().search_experiments(max_results=1), _Mlflow
    ),
}
