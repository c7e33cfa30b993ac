"""The command: checks all, runs what is left, goes on after interruptions, reports at the end.

The experiment is a throw-away folder. Most of its runs are measured alone, which takes less long.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from experiments import run
from experiments.harness.executors import local
from experiments.harness.sweep import ROOT, Run

SWEEP = """
    from experiments.harness.sweep import Run, grid

    TINY = {
        "data.cache_dir": CACHE,
        "data.max_target_length": 16,
        "data.batch_size": 8,
        "model.num_layers": 1,
        "model.d_model": 8,
        "model.num_heads": 1,
        "model.d_ff": 8,
        "decode.extra_length": 2,
        "train.log_every": 5,
    }

    def run(labels, overrides=None, **changes):
        overrides = TINY | (overrides or {})
        return Run(config="configs/bigram_copy.py", overrides=overrides, labels=labels, **changes)

    def trained(quick):
        steps = {"train.steps": 400}
        return [run({"seed": 0, "grid": grid}, steps, measure={"size": 2}) for grid in "ab"]

    def measured(quick):
        sizes = [1] if quick else [1, 2]
        return [run(row, train=False, measure=row) for row in grid(size=sizes)]

    def broken(quick):
        return [run({"size": size}, train=False, measure={"size": size}) for size in (0, 1)]

    def other_arguments(quick):
        return [run({"size": 1}, train=False, measure={"sise": 1})]

    def other_model(quick):
        return [*measured(quick), run({"heads": 3}, {"model.num_heads": 3})]

    def clash(quick):
        return [run({"beam": size}, {"decode.beam_size": size}) for size in (1, 2)]

    SWEEPS = {
        "measured": measured,
        "trained": trained,
        "broken": broken,
        "other_arguments": other_arguments,
        "other_model": other_model,
        "clash": clash,
        "empty": lambda quick: [],
    }
"""
MEASURE = """
    def measure(config, workdir, size):
        if not size:
            raise ValueError("there is nothing of size 0")
        trained = (workdir / "checkpoints").exists()
        return [{"number": number, "trained": trained} for number in range(size)]
"""
REPORT = """
    from experiments.harness import results

    def report(runs, out):
        rows = results.rows(runs)
        results.write_csv(out / "rows.csv", rows)
        results.write_summary(out, {"rows": len(rows)})
        return results.table(rows)
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "question"
    folder.mkdir()
    cache = f"CACHE = {str(tmp_path / 'cache')!r}\n"
    for name, text in (("sweep", SWEEP), ("measure", MEASURE), ("report", REPORT)):
        (folder / f"{name}.py").write_text(cache + textwrap.dedent(text))
    names = ("measured", "trained", "broken", "other_arguments", "other_model", "clash", "empty")
    blocks = [f"<!-- generated: {name} -->\n<!-- end: {name} -->\n" for name in names]
    (folder / "README.md").write_text("# Question\n" + "".join(blocks))
    return folder


@pytest.fixture
def command(folder, tmp_path):
    """The arguments of the command line for a sweep of the folder."""

    def command(sweep, *flags):
        return [str(folder), f"--sweep={sweep}", f"--runs_dir={tmp_path / 'runs'}", *flags]

    return command


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): path.read_bytes() for path in files}


def test_measured_runs_end_in_a_report_and_are_not_run_again(folder, command, tmp_path, capsys):
    assert run.main(command("measured", "--dry_run")) == 0
    assert "0 of 2 runs done" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()

    before = _contents(folder)
    assert run.main(command("measured", "--quick")) == 0
    assert _contents(folder) == before
    quick = tmp_path / "runs" / "question" / "quick"
    assert "| 1 | 0 | False |" in (quick / "README.md").read_text()
    assert json.loads((quick / "results" / "summary.json").read_text()) == {"rows": 1}

    capsys.readouterr()
    assert run.main(command("measured")) == 0  # of which the quick one is one
    assert "1 of 2 runs done, 0 begun, 1 new" in capsys.readouterr().out
    rows = (folder / "results" / "rows.csv").read_text().splitlines()
    assert rows == ["size,number,trained", "1,0,False", "2,0,False", "2,1,False"]
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# Question\n<!-- generated: measured -->\n\n| size |")
    assert "2 runs, " in readme and "1 core a run" in readme

    runs = tmp_path / "runs" / "question"
    before = _contents(folder) | _contents(runs)
    assert run.main(command("measured")) == 0
    assert _contents(folder) | _contents(runs) == before


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
    ("sweep", "message"),
    [
        ("other_arguments", "the run size=1: missing a required argument: 'size'"),
        ("other_model", "the run heads=3: model.d_model=8 is not divisible by model.num_heads=3"),
        ("clash", "beam=1 and beam=2 would share .* differ in decode.beam_size: 1 -> 2"),
        ("empty", "is empty"),
        ("nothing", "question has no sweep 'nothing', but measured, trained"),
    ],
)
def test_mistakes_are_found_before_anything_runs(command, sweep, message, tmp_path, capsys):
    assert run.main(command(sweep)) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_a_readme_without_markers_is_found_before_anything_runs(folder, command, tmp_path, capsys):
    (folder / "README.md").write_text("# Question\n")
    assert run.main(command("measured")) == 1
    assert "needs the lines <!-- generated: measured -->" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_experiment_is_answered_with_the_known(capsys):
    assert run.main(["nothing_of_the_kind"]) == 1
    assert "there is no experiment 'nothing_of_the_kind', but " in capsys.readouterr().err


def _wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the sweep ended before it was stopped: train for longer"
        time.sleep(0.002)


def test_a_stopped_sweep_goes_on_where_it_was(folder, command, tmp_path, capfd):
    runs = tmp_path / "runs" / "question"
    arguments = [sys.executable, "-m", "experiments.run", *command("trained")]
    sweep = subprocess.Popen(arguments, cwd=ROOT, start_new_session=True)
    _wait_for(lambda: any(path.stat().st_size for path in runs.glob("*/metrics.jsonl")), sweep)
    os.kill(sweep.pid, signal.SIGTERM)  # to the sweep alone, which passes it on
    assert sweep.wait() == 128 + signal.SIGTERM
    assert "The same command goes on" in capfd.readouterr().out
    (workdir,) = runs.iterdir()
    stopped = json.loads((workdir / "results.json").read_text())
    assert stopped["status"] == "preempted" and 0 < stopped["steps"] < 400
    assert not (folder / "results").exists()

    assert run.main(command("trained", "--dry_run")) == 0
    assert "0 of 1 run done, 1 begun, 0 new" in capfd.readouterr().out
    assert run.main(command("trained")) == 0
    metrics = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(5, 401, 5))
    # Both sets of labels of the one run are reported.
    rows = (folder / "results" / "rows.csv").read_text().splitlines()
    expected = [f"0,{grid},{number},True" for grid in "ab" for number in (0, 1)]
    assert rows == ["seed,grid,number,trained", *expected]
    # The resumed process trained what was left; then its parameters were measured.
    log = (workdir / "log.txt").read_text()
    assert [line.split()[3] for line in log.splitlines() if line.startswith("$")] == [
        "transformer_jax.main",
        "transformer_jax.main",
        "experiments.harness.measure",
    ]


def test_a_trained_run_is_scored_again_where_scores_are_asked_for_otherwise(tmp_path):
    labels, settings = {"seed": 0}, {"decode.beam_size": 2}
    first = Run(config="configs/bigram_copy.py", overrides={}, labels=labels)
    second = Run(config="configs/bigram_copy.py", overrides=settings, labels=labels)
    moved = Run(config="configs/bigram_copy.py", overrides={"data.dir": "x"}, labels=labels)
    (tmp_path / "results.json").write_text('{"status": "plateaued"}')
    (tmp_path / "config.json").write_text(run.overrides.to_json(first.resolved))
    left = [len(run.Job(tmp_path, tmp_path, (each,)).commands()) for each in (first, second, moved)]
    assert left == [0, 1, 0]
    (tmp_path / "results.json").write_text('{"status": "preempted"}')
    assert len(run.Job(tmp_path, tmp_path, (first,)).commands()) == 1


def test_a_flag_that_an_executor_does_not_read_is_refused(command, capsys):
    assert run.main(command("measured", "--options=--gres=gpu:1")) == 1
    assert "--executor=local does not read --options" in capsys.readouterr().err


def test_one_run_can_be_run_alone_and_gets_no_report(folder, command, tmp_path, capsys):
    assert run.main(command("measured", "--dry_run")) == 0
    second = capsys.readouterr().out.splitlines()[-1].split()[1]
    assert run.main(command("measured", f"--run={second}")) == 0
    assert "0 of 1 run done" in capsys.readouterr().out
    workdir = tmp_path / "runs" / "question" / second
    assert len(json.loads((workdir / "measurements.json").read_text())["rows"]) == 2
    assert not (folder / "results").exists()
    assert run.main(command("measured", "--run=0123")) == 1
    assert "question, sweep measured, has no run 0123" in capsys.readouterr().err


# In place of launch.sh, on a host where a bucket is a folder: gs://b is $BUCKET.
LAUNCH = f"""#!/bin/sh
echo "$*" >"$BUCKET/launched"
cd '{ROOT}'
set -- "$FOLDER" --sweep=measured --quick --runs_dir="$BUCKET/runs"
exec '{sys.executable}' -m experiments.run "$@"
"""
GCLOUD = """#!/bin/sh
for target; do source=${before}; before=$target; done
case "$2" in
    ls) test -e "$BUCKET/${target#gs://b/}" ;;
    rsync) cp -r "$BUCKET/${source#gs://b/}/." "$target" ;;
esac
"""


@pytest.fixture
def clone(folder, tmp_path, monkeypatch):
    """In place of the repository: the experiment, and launch.sh beside the stand-in for gcloud."""
    clone = tmp_path / "clone"
    shutil.copytree(folder, clone / "experiments/question")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bucket").mkdir()
    for path, script in ((clone / "launch.sh", LAUNCH), (tmp_path / "bin/gcloud", GCLOUD)):
        path.write_text(script)
        path.chmod(0o755)
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    monkeypatch.setenv("FOLDER", str(folder))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(run, "ROOT", clone)
    return clone


def test_a_sweep_runs_on_a_slice_and_its_results_come_back(clone, tmp_path):
    flags = ["question", "--sweep=measured", "--quick", f"--runs_dir={tmp_path / 'runs'}"]
    slice_ = ["--executor=tpu", "--options=--accelerator=v6e-8 --spot", "--bucket=gs://b/runs"]
    assert run.main([*flags, *slice_]) == 0
    assert (tmp_path / "bucket/launched").read_text().split() == [
        *("tpu", "--accelerator=v6e-8", "--spot"),
        *("experiment", "question", "--sweep=measured", "--quick", "--runs_dir=gs://b/runs"),
    ]
    report = tmp_path / "runs/question/quick/README.md"
    assert "| 1 | 0 | False |" in report.read_text()


# In place of launch.sh: takes its time to delete the slice.
SLOW = """#!/bin/sh
trap 'sleep 2; touch "$BUCKET/deleted"; exit 130' INT
touch "$BUCKET/launched"
while :; do sleep 0.05; done
"""
# The command, in the clone.
COMMAND = """
import sys
from pathlib import Path
from experiments import run
run.ROOT = Path(sys.argv[1])
sys.exit(run.main(sys.argv[2:]))
"""


def test_ctrl_c_leaves_the_launcher_the_time_to_delete_the_slice(clone, tmp_path):
    (clone / "launch.sh").write_text(SLOW)
    flags = ["question", "--sweep=measured", "--quick", f"--runs_dir={tmp_path / 'runs'}"]
    slice_ = ["--executor=tpu", "--bucket=gs://b/runs"]
    command = [sys.executable, "-c", COMMAND, clone, *flags, *slice_]
    sweep = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    _wait_for((tmp_path / "bucket/launched").exists, sweep)
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does
    assert sweep.wait() == 128 + signal.SIGINT
    assert (tmp_path / "bucket/deleted").exists()


@pytest.mark.parametrize("executor", ["tpu", "skypilot"])
def test_a_folder_that_other_machines_lack_is_refused(clone, tmp_path, capsys, executor):
    flags = ["question", f"--executor={executor}", "--bucket=gs://b/runs", "--data_dir=data"]
    assert run.main(flags) == 1
    assert f"--data_dir=data: the machines of --executor={executor}" in capsys.readouterr().err
    assert not (tmp_path / "bucket/launched").exists()


def test_tasks_get_the_whole_path_of_the_data(command, tmp_path, monkeypatch):
    tasks = []
    monkeypatch.setattr(
        run.slurm, "run_all", lambda jobs, task, *_, **__: tasks.append(task) or jobs
    )
    monkeypatch.chdir(tmp_path)
    assert run.main(command("measured", "--executor=slurm", "--data_dir=data")) == 1
    assert f"--data_dir={tmp_path / 'data'}" in tasks[0]


def test_the_devices_are_left_to_the_runs(command):
    arguments = [sys.executable, "-m", "experiments.run", *command("measured")]
    environment = os.environ | {"JAX_PLATFORMS": "nowhere"}

    def call(*flags):
        call = [*arguments, *flags]
        return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True)

    planned = call("--dry_run")
    assert planned.returncode == 0, planned.stderr
    run_there = call()
    assert run_there.returncode == 1 and "JAX finds no device" in run_there.stderr
    assert "nowhere" in run_there.stderr


def test_a_mesh_is_checked_without_its_devices(tmp_path):
    def check(**mesh):
        overrides = {"data.batch_size": 8} | {f"mesh.{axis}": n for axis, n in mesh.items()}
        return run.check(
            Run(config="configs/bigram_copy.py", overrides=overrides, labels={}), tmp_path
        )

    assert check(tensor=64).mesh.shape == {"data": 1, "fsdp": 1, "tensor": 64, "sequence": 1}
    with pytest.raises(ValueError, match="cannot be dealt out evenly to 3 devices"):
        check(fsdp=3)


def test_a_run_shows_that_it_goes_on_as_long_as_it_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(local, "_SIGN_SECONDS", 0.2)
    one = Run(config="configs/bigram_copy.py", overrides={}, labels={"seed": 0})
    job = run.Job(tmp_path, tmp_path, (one,))

    def follow(script):
        with (tmp_path / "log.txt").open("ab") as log:
            local._follow(subprocess.Popen(["sh", "-c", script], stdout=log), job)
        return capsys.readouterr().out

    writes = "for i in $(seq 30); do echo; sleep 0.1; done"
    assert re.match(r"running for \d+ s  \w+  seed=0\n", follow(writes))
    assert follow("sleep 1") == ""


@pytest.mark.parametrize(("jobs", "cores"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1)])
def test_runs_at_once_have_as_many_cores_each(monkeypatch, jobs, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 4, 8, 9}, raising=False)
    shares = [slot.cores for slot in local.slots(jobs)]
    assert [len(share) for share in shares] == [cores] * jobs
    used = [core for share in shares for core in share]
    assert set(used) <= {3, 4, 8, 9}
    assert len(set(used)) == min(jobs * cores, 4)


@pytest.mark.parametrize(
    ("jobs", "visible", "expected"),
    [
        (None, "", ["0", "1", "2", "3"]),
        (2, "", ["0,1", "2,3"]),
        (1, "", ["0,1,2,3"]),
        (6, "", ["0", "1", "2", "3", "0", "1"]),
        (None, "4,5,GPU-1,7", ["4", "5", "GPU-1", "7"]),
    ],
)
def test_runs_share_out_the_gpus(monkeypatch, jobs, visible, expected):
    monkeypatch.setattr(local, "_devices", lambda: ("gpu", 4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    slots = local.slots(jobs)
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == expected


def test_a_tpu_takes_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr(local, "_devices", lambda: ("tpu", 4))
    (slot,) = local.slots(None)
    assert slot.environment == {}
