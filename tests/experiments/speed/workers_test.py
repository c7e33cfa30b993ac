"""Programs in processes of their own do their work when they are asked to, and take turns."""

import collections
import os
import sys
import textwrap

import pytest

from experiments.speed import workers
from experiments.speed.peers import SCRIPTS

SCRIPT = """
    import worker

    spec, answers = worker.start()
    print("a library says hello", flush=True)
    count = 0

    def work():
        global count
        count += 1
        if count > spec["arguments"]["most"]:
            raise ValueError("enough")
        return {"tokens": spec["config"]["tokens"], "count": count}

    worker.serve(answers, work, "test 1.0")
"""


@pytest.fixture
def worker(tmp_path):
    """The script, which has done its work once, and fails after five times."""
    script, config = tmp_path / "script.py", tmp_path / "config.json"
    script.write_text(textwrap.dedent(SCRIPT))
    config.write_text('{"tokens": 5}')
    spec = {"config_file": str(config), "arguments": {"most": 5}}
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    command = [sys.executable, str(script)]
    worker = workers.Worker(command, spec, environment, tmp_path / "log.txt")
    yield worker
    worker.close()


def test_a_worker_does_its_work_once_and_then_as_often_as_it_is_asked(worker, tmp_path):
    assert worker.first["version"] == "test 1.0"
    assert worker.first["count"] == 1 and worker.first["seconds"] > 0
    reading = worker(3)
    assert reading["tokens"] == 15 and reading["count"] == 2 + 3 + 4
    assert 0 < reading["seconds"] and reading["peak_bytes"] > 1_000_000
    assert worker(1)["count"] == 5
    assert (tmp_path / "log.txt").read_text() == "a library says hello\n"


def test_a_worker_that_fails_shows_what_it_said(worker):
    with pytest.raises(RuntimeError, match="(?s)status 1.*ValueError: enough"):
        worker(5)


def test_works_take_turns_and_each_begins_a_round():
    order = []

    def work(name):
        return lambda: order.append(name) or {"seconds": len(order)}

    rows = workers.in_turn({name: work(name) for name in "abc"}, rounds=4)
    rounds = ["".join(order[start : start + 3]) for start in range(0, 12, 3)]
    assert all(sorted(names) == list("abc") for names in rounds)
    assert {names[0] for names in rounds} == set("abc")
    assert [row["program"] for row in rows] == order
    assert [row["seconds"] for row in rows] == list(range(1, 13))
    assert collections.Counter(row["round"] for row in rows) == dict.fromkeys(range(4), 3)
