"""Trackers get what metrics.jsonl holds, once, and never stop a training that has begun."""

import importlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_jax.runs import trackers
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.trackers import TRACKERS
from transformer_jax.runs.workdir import read_metrics

CONFIG = {"seed": 3, "model.norm": "layer_norm", "optimizer.groups": (("a/*", 0.1, 0.0),)}
TOTAL = 10


@pytest.fixture
def server(monkeypatch):
    """A tracker in memory, whose class has its runs by id; it drops steps that a run has."""

    class Server:
        runs, opened, broken = {}, [], False

        def __init__(self, workdir, id, config):
            self.fail()
            self.id = id or f"run {len(self.runs)}"
            self.opened.append(self.id)
            self.run = self.runs.setdefault(self.id, {"points": [], "config": config, "ends": []})
            self.known = max((step for step, *_ in self.run["points"]), default=0)

        @classmethod
        def fail(cls):
            if cls.broken:
                raise ConnectionError("no route to host\nand a long trace")

        check = fail

        def log(self, step, values):
            self.fail()
            if step > self.known:
                self.run["points"] += [(step, *point) for point in values.items()]

        def finish(self, status, scores):
            self.run["ends"].append((status, dict(scores)))

    monkeypatch.setitem(TRACKERS, "json", Server)  # a package that is installed
    return Server


def open_log(workdir: Path, restored_step: int = 0, names=("json",)) -> RunLog:
    return RunLog(
        workdir, restored_step=restored_step, total_steps=TOTAL, trackers=names, config=CONFIG
    )


def train(workdir: Path, start: int, end: int, names=("json",)) -> RunLog:
    log = open_log(workdir, start, names)
    for step in range(start + 1, end + 1):
        log.write(step, {"train/loss": 1 / step, "diagnostics/norms": np.arange(3.0) * step})
        if step % 3 == 0:
            log.write(step, {"validation/loss": math.nan})
    return log


def points(workdir: Path) -> list[tuple[int, str, float]]:
    """What metrics.jsonl holds, a number a row; names of lists' entries end in their number."""
    rows = []
    for record in read_metrics(workdir):
        for name, value in record.items():
            entries = enumerate(value) if isinstance(value, list) else [(None, value)]
            for at, entry in entries if name != "step" else ():
                key = name if at is None else f"{name}/{at}"
                rows.append((record["step"], key, math.nan if entry is None else entry))
    return rows


def assert_same(rows, expected):
    assert len(rows) == len(expected)
    for one, other in zip(sorted(rows), sorted(expected), strict=True):
        assert one[:2] == other[:2]
        assert one[1].startswith("time/") or one[2] == other[2] or math.isnan(one[2] + other[2])


def test_a_tracker_gets_exactly_what_the_metrics_hold(tmp_path, server):
    log = train(tmp_path, 0, TOTAL)
    log.results({"status": "finished", "test/bleu": 31.5, "steps": TOTAL})
    log.close()
    log.close()
    (run,) = server.runs.values()
    assert_same(run["points"], points(tmp_path))
    assert run["ends"] == [("finished", {"results/test/bleu": 31.5})]
    assert run["config"] == json.loads(json.dumps(CONFIG))


@pytest.mark.parametrize("restored", [(0,), (3,), (6,), (3, 6), (6, 3)])
def test_a_resumed_run_continues_the_same_run(tmp_path, server, restored):
    """Each process gets a step further than the next one's restored step, and is killed."""
    logs = [train(tmp_path, 0, 7), *(train(tmp_path, start, 7) for start in restored[:-1])]
    logs.append(train(tmp_path, restored[-1], TOTAL))
    logs[-1].results({"status": "preempted"})
    for log in reversed(logs):
        log.close()
    assert server.opened == ["run 0"] * len(logs)
    assert_same(server.runs["run 0"]["points"], points(tmp_path))
    assert server.runs["run 0"]["ends"][0] == ("preempted", {})
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"json": {"id": "run 0"}}


def test_a_run_that_ends_without_a_status_has_failed(tmp_path, server):
    log = train(tmp_path, 0, 2)
    log.results({"status": "running"})
    log.close()
    assert server.runs["run 0"]["ends"] == [("failed", {})]


@pytest.mark.parametrize("before", ["{}", '{"json": {"id": "run 7", "sent": 2}, "wandb": {}}'])
def test_a_run_is_logged_on_from_the_step_that_is_restored(tmp_path, server, before):
    """Whatever older versions noted; and a start without trackers forgets none."""
    (tmp_path / "trackers.json").write_text(before)
    for start, end, names in ((0, 4, ()), (4, 6, ("json",)), (6, 8, ()), (8, TOTAL, ("json",))):
        train(tmp_path, start, end, names).close()
    (run,) = server.runs.values()
    assert server.opened == ["run 7" if "7" in before else "run 0"] * 2
    assert_same(run["points"], [row for row in points(tmp_path) if row[0] in (5, 6, 9, 10)])


def test_one_that_breaks_is_warned_of_once_and_is_there_again_at_the_next_start(
    tmp_path, server, caplog
):
    log = train(tmp_path, 0, 3)
    server.broken = True
    for step in (4, 5, 6):
        log.write(step, {"train/loss": 1 / step})
    log.close()
    assert [record.getMessage().count("ConnectionError") for record in caplog.records] == [1]
    assert len(list(read_metrics(tmp_path))) == 7
    server.broken = False
    train(tmp_path, 6, TOTAL).close()
    expected = [row for row in points(tmp_path) if row[0] not in (4, 5, 6)]
    assert_same(server.runs["run 0"]["points"], expected)


def test_what_cannot_work_is_told_before_training(tmp_path, server, monkeypatch):
    trackers.check(())
    trackers.check(("json",))
    server.broken = True
    for call in (lambda: trackers.check(("json",)), lambda: open_log(tmp_path)):
        with pytest.raises(
            RuntimeError, match="'json' .*: ConnectionError: no route to host. Mend"
        ):
            call()
    monkeypatch.setitem(TRACKERS, "no_such_package", server)
    with pytest.raises(RuntimeError, match="needs the package no_such_package.* -m pip install"):
        trackers.check(("no_such_package",))
    (tmp_path / "trackers.json").write_text("{")
    with pytest.raises(ValueError, match="trackers.json is broken"):
        open_log(tmp_path)


# The libraries themselves, without a server -------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # theirs
def test_mlflow_keeps_all_of_it(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # needs no database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    trackers.check(("mlflow",))
    workdir = tmp_path / "run"
    killed = train(workdir, 0, 6, ("mlflow",))
    log = train(workdir, 4, TOTAL, ("mlflow",))
    log.results({"status": "finished", "test/bleu": 31.5})
    killed.close()
    log.close()
    client = trackers._mlflow_client()
    (run,) = client.search_runs([client.get_experiment_by_name("transformer_jax").experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["status"] == "finished"
    assert run.data.params["model.norm"] == '"layer_norm"' and run.data.params["seed"] == "3"
    rows = [
        (point.step, name, point.value)
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]
    assert (TOTAL, "results/test/bleu", 31.5) in rows
    assert_same([row for row in rows if not row[1].startswith("results/")], points(workdir))


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_keeps_all_of_it(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trackers.check(("wandb",))
    log = train(tmp_path, 0, TOTAL, ("wandb",))
    log.results({"status": "finished", "test/bleu": 31.5})
    log.close()
    wandb.teardown()  # its own process writes the file
    rows, summary, status = read_offline(tmp_path)
    metrics = [row for row in rows if not row[1].startswith("_")]
    # Two records of one step are one there.
    once = {row[:2]: row[2] for row in points(tmp_path)}
    assert_same(metrics, [(*key, value) for key, value in once.items()])
    assert summary["status"] == "finished" and summary["results/test/bleu"] == 31.5
    assert status == 0


def read_offline(workdir: Path) -> tuple[list[tuple[int, str, float]], dict, int]:
    """Points, summary and exit code in the file of an offline run: LevelDB's log of messages."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = workdir.glob("wandb/offline-run-*/*.wandb")
    content, at, part = path.read_bytes(), 7, b""
    rows, summary, status = [], {}, -1
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # the rest of a block is too small for a header
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        part += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind not in (1, 4):  # whole, or the last part
            continue
        record, part = messages.Record.FromString(part), b""
        if record.HasField("history"):
            items = {
                item.key or "/".join(item.nested_key): float(json.loads(item.value_json))
                for item in record.history.item
            }
            rows += [(items["_step"], name, value) for name, value in items.items()]
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if record.HasField("exit"):
            status = record.exit.exit_code
    return rows, summary, status
