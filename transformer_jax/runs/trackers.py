"""Weights & Biases and MLflow: the numbers of metrics.jsonl, for those who look at runs there.

Both are optional. A library is imported only where `log.trackers` names it, and reads the server,
project and credentials from its own environment variables. A tracker that does not work ends a run
before anything is compiled; one that breaks later is warned of once, and training continues.
"""

import contextlib
import importlib
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer_jax.runs.workdir import TRACKED, WALL, plain, reading, scores, write_atomically

_PROJECT = "transformer_jax"  # unless the environment names another one
_FINISHED = ("finished", "plateaued")  # runs that have made all their steps


class _Wandb:
    def __init__(self, workdir: Path, id: str | None, config: Mapping[str, Any]):
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=workdir.absolute().name,
            dir=str(workdir.absolute()),
            id=id,  # None: a new one
            resume="allow",  # and drops the steps that it has
            config=dict(config),
            allow_val_change=True,  # a rerun may change some
            # Standard output is left alone, and no end of a run waits for a network that is gone.
            settings=wandb.Settings(console="off", finish_timeout=60),
        )
        self.id = str(self._run.id)

    @staticmethod
    def check() -> None:
        wandb: Any = importlib.import_module("wandb")
        if os.environ.get("WANDB_MODE", "online") == "online":
            wandb.login(verify=True, timeout=20)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self._run.summary.update({"status": status} | dict(scores))
        if status == "preempted":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status in _FINISHED else 1)


class _Mlflow:
    def __init__(self, workdir: Path, id: str | None, config: Mapping[str, Any]):
        mlflow: Any = importlib.import_module("mlflow")
        self._client, self._metric = _mlflow_client(), mlflow.entities.Metric
        self._step = self._last = 0
        if id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            where = mlflow.set_experiment(name).experiment_id
            id = self._client.create_run(where, run_name=workdir.absolute().name).info.run_id
            params = [
                mlflow.entities.Param(key, json.dumps(value)) for key, value in config.items()
            ]
            self._client.log_batch(id, params=params)
        else:
            # It would keep two points of a step.
            points = self._client.get_metric_history(id, WALL)
            self._step = self._last = max((point.step for point in points), default=0)
            self._client.update_run(id, status="RUNNING")
        # Parameters cannot change; what a rerun changes of the config is in this file.
        self._client.log_dict(id, dict(config), "config.json")
        self.id = str(id)

    @staticmethod
    def check() -> None:
        _mlflow_client().search_experiments(max_results=1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._last:
            self._send(step, values)

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        now, self._step = int(1000 * time.time()), step
        rows = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.id, metrics=rows)

    def finish(self, status: str, scores: Mapping[str, float]) -> None:
        self._client.set_tag(self.id, "status", status)
        self._send(self._step, scores)
        ended = "KILLED" if status == "preempted" else "FAILED"
        self._client.set_terminated(self.id, "FINISHED" if status in _FINISHED else ended)


def _mlflow_client() -> Any:
    # By default it tries for minutes, in which training would stand still.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    return importlib.import_module("mlflow").MlflowClient()


# A row is a class whose name here is that of its package, and what `log.trackers` may hold. `check`
# raises where no run could be opened, as without login or network; (work directory, id of a run to
# continue or None, config by dotted key) opens one, whose `id` continues it. It keeps the steps
# that it has as they are.
TRACKERS = {"wandb": _Wandb, "mlflow": _Mlflow}


def check(names: Iterable[str]) -> None:
    """Raises RuntimeError where a tracker is not installed or cannot be reached."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise RuntimeError(
                f"log.trackers={name!r} needs the package {name}, which is not installed: "
                f"{sys.executable} -m pip install {name}, or leave it out"
            )
        with _working(name):
            TRACKERS[name].check()


class Trackers:
    """The trackers of one run. Its next process logs on from the step that it restores."""

    def __init__(self, names: Sequence[str], workdir: Path, config: Mapping[str, Any]):
        """Opens the run at each tracker; trackers.json keeps the ids.

        Raises RuntimeError where one cannot be opened.
        """
        self._open: dict[str, _Wandb | _Mlflow] = {}
        if not names:
            return
        path = workdir / TRACKED
        with reading(path, "remove it, and trackers get this run as a new one"):
            runs = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for name in names:
            id = runs.get(name, {}).get("id")
            with _working(name):
                self._open[name] = TRACKERS[name](workdir, id, plain(config))
            runs[name] = {"id": self._open[name].id}
        write_atomically(path, json.dumps(runs, indent=1) + "\n")

    def log(self, record: Mapping[str, Any]) -> None:
        """Sends a record of metrics.jsonl. The entries of a vector go by their number from 0."""
        self._each(lambda tracker: tracker.log(record["step"], _numbers(record)))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Ends the runs with the status and the scores of results.json."""
        status = results.get("status", "running")
        status = "failed" if status == "running" else status
        # Apart from those that were logged on the way under the same names.
        named = {f"results/{name}": value for name, value in _numbers(scores(results)).items()}
        self._each(lambda tracker: tracker.finish(status, named))
        self._open = {}

    def _each(self, call: Callable[[_Wandb | _Mlflow], None]) -> None:
        """Calls it with every tracker; warns of one that fails, and lets go of it."""
        for name, tracker in list(self._open.items()):
            try:
                call(tracker)
            except Exception as error:
                del self._open[name]
                logging.warning(
                    "log.trackers: %s failed (%s); training continues without it until its next "
                    "start, and metrics.jsonl has all numbers",
                    name,
                    _first_line(error),
                )


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    flat = {}
    for name, value in plain(record).items():
        if isinstance(value, list):
            flat |= {f"{name}/{number}": entry for number, entry in enumerate(value)}
        elif name != "step":
            flat[name] = value
    return {name: math.nan if value is None else float(value) for name, value in flat.items()}


@contextlib.contextmanager
def _working(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RuntimeError(
            f"log.trackers={name!r} does not work: {_first_line(error)}. Mend it, or leave it out: "
            "metrics.jsonl has all numbers"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0].rstrip(". ")
    return f"{type(error).__name__}: {text[:300]}"
