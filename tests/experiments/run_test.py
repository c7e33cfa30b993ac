"""The command: checks all, runs what is left, continues after interruptions, reports at the end."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from experiments import run
from experiments.harness.executors import Executor, local
from experiments.harness.jobs import Job
from experiments.harness.sweep import part
from tests.faults.endings import as_process
from tests.processes import wait_for
from tests.whole.command_line import records, timeless
from transformer_jax.config.load import to_json
from transformer_jax.runs.workdir import read_metrics, read_results


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.long
def test_measured_runs_end_in_a_report_and_are_not_run_again(folder, command, tmp_path, capsys):
    def out_of(*flags):
        capsys.readouterr()
        assert run.main(command("measured", *flags)) == 0
        return capsys.readouterr().out

    output, runs = out_of("--dry_run"), tmp_path / "runs" / "question"
    assert "0 of 2 runs done" in output and not (tmp_path / "runs").exists()
    # One alone gets no report; nor does the small version of the sweep get one in the folder.
    second, before = output.splitlines()[-1].split()[1], _contents(folder)
    assert "0 of 1 run done" in out_of(f"--run={second}")
    assert len(json.loads((runs / second / "measurements.json").read_text())["rows"]) == 2
    assert "0 of 1 run done, 0 begun, 1 new" in out_of("--quick")
    assert _contents(folder) == before
    assert "| 1 | 0 | False |" in (runs / "quick" / "README.md").read_text()
    assert json.loads((runs / "quick" / "results" / "summary.json").read_text()) == {"rows": 1}

    assert "2 of 2 runs done" in out_of()
    rows = (folder / "results" / "rows.csv").read_text().splitlines()
    assert rows == ["size,number,trained", "1,0,False", "2,0,False", "2,1,False"]
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# Question\n<!-- generated: measured -->\n\n| size |")
    assert "2 runs, " in readme and "1 core a run" in readme
    before = _contents(folder) | _contents(runs)
    out_of()
    assert _contents(folder) | _contents(runs) == before


@pytest.mark.long
def test_a_failed_run_stops_no_other_and_is_named_with_its_log(folder, command, capsys):
    assert run.main(command("broken", "--jobs=1")) == 1
    out = capsys.readouterr().out
    assert re.search(r"failed after \d+ s  \w+  size=0\n.* done after \d+ s  \w+  size=1", out)
    assert "ValueError: there is nothing of size 0" in out
    assert "1 of 2 runs are missing" in out
    assert not (folder / "results").exists()
    assert run.main(command("broken", "--dry_run")) == 0
    assert "1 of 2 runs done, 1 begun, 0 new" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: measured -->", "README.md needs the lines <!-- generated: measured -->"),
        ("SWEEPS = {", "sweep.py: '{' was never closed (sweep.py, line 1)"),
        ("import sys\nsys.exit(0)\n", "sweep.py, line 2: SystemExit(0)"),
        ("x = {}\nx['a']\n", "sweep.py, line 2: KeyError('a')"),
        ("SWEEPS = [1]\n", "sweep.py lacks SWEEPS = "),
        ("SWEEPS = {'measured': None}\n", "sweep.py: TypeError("),
        ("SWEEPS = {'measured': lambda quick: None}\n", "sweep.py: TypeError("),
        ("SWEEPS = {'measured': lambda quick: [{'a': 1}]}\n", "lists {'a': 1}, which is no Run"),
        ("def f(quick):\n    exit('x')\nSWEEPS = {'measured': f}\n", "line 2: SystemExit('x')"),
        ("JOBS = 0\nSWEEPS = {'measured': lambda quick: []}\n", "JOBS in sweep.py, is 0: expected"),
    ],
)
def test_a_mistake_in_a_folder_is_one_line(folder, command, tmp_path, capsys, text, message):
    (folder / ("README.md" if "generated" in text else "sweep.py")).write_text(text)
    assert run.main(command("measured")) == 1
    error = capsys.readouterr().err
    assert message in error and (str(folder) in error or "JOBS" in text)
    assert len(error.splitlines()) == 1 and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["~", "~nobody_of_this_name", "~/x\0y", "a\0b", "a\nb", "..", ""])
def test_a_name_that_is_none_makes_no_folder(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "experiments").mkdir()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    assert run.main([name, "--new"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert {path.name for path in tmp_path.rglob("*")} == {"home", "experiments"}


def test_runs_that_no_label_tells_apart_are_no_seeds(folder, command, capsys):
    """The report of a folder without one would show their mean."""
    (folder / "report.py").unlink()
    assert run.main(command("same_seeds", "--dry_run")) == 1
    said = "the runs seed=0 and seed=1 differ in model.d_ff, which no label says"
    assert said in capsys.readouterr().err


def test_a_new_experiment_lists_its_runs_and_reports(tmp_path, capsys, undrawn):
    folder = tmp_path / "mine"
    command = [str(folder), f"--runs_dir={tmp_path / 'runs'}"]
    assert run.main([str(folder), "--new"]) == 0
    assert f"./launch.sh experiment {folder} --dry_run" in capsys.readouterr().out
    assert run.main([str(folder), "--new"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run.main([*command, "--dry_run"]) == 0
    assert "0 of 4 runs done" in capsys.readouterr().out
    runs = part(folder, "sweep").SWEEPS["cpu"](False)
    for number, each in enumerate(runs):
        workdir, loss = tmp_path / "runs" / "mine" / each.id, {"train/token_loss": 1.0 + number}
        workdir.mkdir(parents=True)
        (workdir / "config.json").write_text(to_json(each.resolved))
        (workdir / "results.json").write_text(json.dumps({"status": "finished"} | loss))
        (workdir / "metrics.jsonl").write_text(json.dumps({"step": 1} | loss))
    assert run.main(command) == 0
    readme = (folder / "README.md").read_text()
    section = readme[readme.index("## Results") : readme.index("## Conclusion")]
    assert "| post_ln | 2 finished |" in section and "| pre_ln | 2 finished |" in section
    assert "results/cpu_curves.svg" in section and "4 runs, " in section
    order = json.loads((tmp_path / "runs" / "mine" / "sweeps.json").read_text())
    assert order == {"cpu": [each.id for each in runs]}


@pytest.fixture
def orders(monkeypatch):
    """What executors are asked for, which do nothing."""
    orders = []
    for name in ("local", "slurm"):
        executor = Executor(lambda order: orders.append(order) or 0, reads=("jobs",))
        monkeypatch.setitem(run.EXECUTORS, name, executor)
    return orders


def test_tasks_get_the_whole_path_of_the_data(orders, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run.main(command("of_files", "--executor=slurm", "--data_dir=data")) == 1
    assert f"--data_dir={tmp_path / 'data'}" in orders[0].flags


def test_runs_that_were_done_with_data_elsewhere_are_told(command, tmp_path, capsys):
    """Their id does not tell one folder from another, so they count as done; and so do those
    that were measured before measurements named their config."""

    def show(data_dir):
        assert run.main(command("of_files", "--dry_run", f"--data_dir={data_dir}")) == 0
        return capsys.readouterr().out

    workdir = tmp_path / "runs" / "question" / show("/data/v1").splitlines()[-1].split()[1]
    workdir.mkdir(parents=True)
    (workdir / "measurements.json").write_text('{"rows": []}')
    (workdir / "run.json").write_text('{"overrides": {"data.dir": "/data/v1"}}')
    assert "1 of 1 run done" in show("/data/v1") and "/data/v1" not in show("/data/v1")
    out = show("/data/v2")
    assert "1 of 1 run done" in out and "1 done with the data in /data/v1, and not done" in out


@pytest.mark.parametrize("flags, expected", [((), 1), (("--jobs=2",), 2)])
def test_a_sweep_says_how_many_runs_may_disturb_each_other(
    flags, expected, folder, command, orders
):
    with (folder / "sweep.py").open("a") as file:
        file.write("\nJOBS = 1\n")
    assert run.main(command("measured", *flags)) == 1
    assert orders[0].at_once == expected


@pytest.mark.long
def test_the_devices_are_left_to_the_runs(command, monkeypatch):
    """Planning needs none, but running does."""
    monkeypatch.setenv("JAX_PLATFORMS", "nowhere")
    status, out, err = as_process(*command("measured", "--quick"), module="experiments.run")
    assert "0 of 1 run done" in out, err
    assert status == 1 and "JAX finds no device" in err and "nowhere" in err


@pytest.mark.long
def test_branches_of_one_trunk_cost_it_once(command, tmp_path):
    """What was trained is counted in logged steps: all of the trunk, of others their own."""
    assert run.main(command("forks", "--jobs=2")) == 0
    workdirs = [path.parent for path in tmp_path.glob("runs/question/*/config.json")]
    logged = [[record["step"] for record in read_metrics(workdir)] for workdir in workdirs]
    assert sorted(logged) == [[5, 10, 15, 20], *[[15, 20, 25]] * 3]
    logs = [(workdir / "log.txt").read_text() for workdir in workdirs]
    assert [log.count("\n$ ") + log.startswith("$ ") for log in logs] == [1] * 4
    trunk, branch = (next(w for w in workdirs if len([*read_metrics(w)]) == n) for n in (4, 3))
    before = _contents(trunk)
    shutil.rmtree(branch)
    assert run.main(command("forks")) == 0  # that branch again, and nothing else
    assert _contents(trunk) == before and len([*read_metrics(branch)]) == 3


@pytest.mark.long
def test_runs_that_share_a_process_end_alone_and_as_in_one_of_their_own(
    folder, command, tmp_path, monkeypatch
):
    """One diverges, one is refused, and one is killed, then interrupted, and resumed both times."""
    stops, follow = [signal.SIGKILL, signal.SIGINT], local._follow

    def stopping(has_ended, job):
        """Stops the third run once it has logged: its process, and then the whole sweep."""
        if stops and job.runs[0].labels["case"] == 2:
            wait_for(lambda: [*read_metrics(job.workdir)])
            stop = stops.pop(0)
            os.kill(_process_of(job.workdir) if stop == signal.SIGKILL else os.getpid(), stop)
        follow(has_ended, job)

    monkeypatch.setattr(local, "_follow", stopping)
    runs = part(folder, "sweep").SWEEPS["shared"](False)
    home = tmp_path / "runs" / "question"
    diverging, refused, stopped, last = (home / each.id for each in runs)
    refused.mkdir(parents=True)
    (refused / "checkpoints").touch()
    assert run.main(command("shared", "--jobs=1")) == 1
    assert _process_of(diverging) == _process_of(stopped) != _process_of(last)
    assert read_results(diverging)["first_bad_step"] and not read_results(refused)
    assert "is not a folder" in (refused / "log.txt").read_text()
    assert read_results(stopped)["status"] == "running" and read_results(last)["steps"] == 20
    for each in runs:
        log = (home / each.id / "log.txt").read_text()
        assert {other.id for other in runs if other.id in log} == {each.id}

    (refused / "checkpoints").unlink()
    (stopped / "metrics.jsonl").unlink()  # so that the next process is waited for
    assert run.main(command("shared", "--jobs=1")) == 128 + signal.SIGINT
    assert read_results(stopped)["status"] == "preempted"
    assert 0 < read_results(stopped)["steps"] < 800
    assert run.main(command("shared", "--jobs=1")) == 0
    steps = [record["step"] for record in read_metrics(stopped)]
    assert steps == sorted({*steps}) and steps[-1] == 800

    monkeypatch.setattr(Job, "process", None)
    alone = f"--run={last.name}", f"--runs_dir={tmp_path / 'alone'}"
    assert run.main(command("shared", *alone)) == 0
    other = tmp_path / "alone" / "question" / last.name
    assert _process_of(other) != _process_of(last)
    assert records(other) == records(last)
    assert timeless(read_results(other)) == timeless(read_results(last))


def _process_of(workdir: Path) -> int:
    """The process that trained there last."""
    return int((workdir / ".lock").read_text().split()[1])
