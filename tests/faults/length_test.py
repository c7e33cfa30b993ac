"""Length: memory, file handles, threads and times stay flat over steps, runs and lines of a log.

A time is compared with another of the same process or command alone.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.tools.reports.workdirs import make
from tests.whole.command_line import call, records, results
from tests.whole.multi_host_test import TINY
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default
from transformer_jax.inspection.spikes import spike_scores
from transformer_jax.runs.log import RunLog, spikes
from transformer_jax.runs.workdir import read_metrics
from transformer_jax.tools.reports import compare, report

STEPS, EVERY = 20_000, 500
RUNS = 5_000
LINES = 2_000_000


class Usage(NamedTuple):
    """What this process holds: bytes of memory, file handles and threads; and the time."""

    memory: int
    handles: int
    threads: int
    seconds: float


def usage_now() -> Usage:
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    handles, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return Usage(memory, handles, threads, time.monotonic())


@pytest.fixture
def config(tmp_path):
    """The config file of a tiny run on random words."""
    words = np.random.default_rng(0).integers(97, 123, (300, 6), np.uint8)
    (tmp_path / "text").write_text("\n".join(word.tobytes().decode() for word in words))
    folders = {"data.dir": str(tmp_path), "data.cache_dir": str(tmp_path / "cache")}
    quiet = {"optimizer.learning_rate": 1e-4, "train.log_every": 10, "checkpoint.keep_last": 2}
    settings = load(default.__file__, TINY | folders | quiet | {"checkpoint.every": EVERY})
    (tmp_path / "config.json").write_text(to_json(settings))
    return tmp_path / "config.json"


@pytest.mark.faults
def test_twenty_thousand_steps_take_as_much_late_as_early(config, tmp_path, monkeypatch):
    """Between checkpoints, of which the first few fill what is kept."""
    usage: dict[int, Usage] = {}
    write = RunLog.write

    def noted(log, step, values):
        write(log, step, values)
        if step % EVERY == EVERY // 2:
            usage[step] = usage_now()

    monkeypatch.setattr(RunLog, "write", noted)
    flags = f"--config={config}", f"--workdir={tmp_path / 'run'}"
    assert call(*flags, f"--config.train.steps={STEPS}") == 0
    assert results(tmp_path / "run")["steps"] == STEPS
    assert [r["step"] for r in records(tmp_path / "run") if "train/loss" in r][-1] == STEPS
    moments = list(usage.values())
    quarter = len(moments) // 4
    early, late = moments[quarter : 2 * quarter], moments[-quarter:]
    for name in ("handles", "threads"):
        most = [max(getattr(each, name) for each in window) for window in (early, late)]
        assert most[1] <= most[0], name
    memory = [np.mean([each.memory for each in window]) for window in (early, late)]
    seconds = [window[-1].seconds - window[0].seconds for window in (early, late)]
    print(f"memory {memory}, seconds {seconds}, {early[0]}, {late[-1]}")
    assert memory[1] < memory[0] + 2**25 and seconds[1] < 2 * seconds[0]


@pytest.mark.faults
@pytest.mark.parametrize("command", [compare, report])
def test_five_thousand_runs_take_ten_times_as_long_as_five_hundred(
    tmp_path, command, undrawn, capsys, monkeypatch
):
    for number in range(RUNS):
        make(tmp_path / f"{number:04}", seed=number, steps=10, model={"residual": f"x{number % 7}"})
    runs, seconds = sorted(map(str, tmp_path.iterdir())), []
    monkeypatch.chdir(tmp_path)
    command.main(runs[:2])  # imports
    before = usage_now()
    for several in (runs[: RUNS // 10], runs):
        started = time.process_time()
        assert command.main(several) == 0
        seconds.append(time.process_time() - started)
    after = usage_now()
    assert after.handles <= before.handles and after.threads <= before.threads
    assert seconds[1] < 2 * 10 * seconds[0]


def long_log(path, lines, last):
    """Writes a log of so many lines up to a step."""
    record = {f"train/{name}": 0.125 for name in ("loss", "token_loss", "gradient_norm")}
    with path.open("w") as file:
        for number in range(lines):
            file.write(json.dumps({"step": 1 + number * last // lines, **record}) + "\n")


COMMANDS = {
    "resume": "transformer_jax.main --workdir=run --config.train.steps=12",
    "compare": "transformer_jax.tools.reports.compare run",
    "report": "transformer_jax.tools.reports.report run",
}


@pytest.mark.faults
@pytest.mark.parametrize("command", COMMANDS)
def test_two_million_lines_of_a_log_are_read_in_the_memory_of_a_few(config, tmp_path, command):
    """And in a hundred times the time of a hundredth, less what it takes to start."""
    flags = f"--config={config}", f"--workdir={tmp_path / 'run'}"
    assert call(*flags, "--config.train.steps=10") == 0
    used = {}
    for lines in (0, LINES // 2, LINES):
        folder = tmp_path / str(lines)
        shutil.copytree(tmp_path / "run", folder / "run")
        if lines:
            long_log(folder / "run/metrics.jsonl", lines, 10)
        words = [sys.executable, "-m", *COMMANDS[command].split()]
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
        _, status, used[lines] = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0
        if command == "resume":
            count = sum(1 for _ in read_metrics(folder / "run"))
            assert count >= lines and results(folder / "run")["steps"] == 12
        shutil.rmtree(folder)
    seconds = {lines: use.ru_utime + use.ru_stime for lines, use in used.items()}
    memory = {lines: use.ru_maxrss / 2**10 for lines, use in used.items()}  # MiB
    print(f"{command}: seconds {seconds}, MiB {memory}")
    assert memory[LINES] < memory[0] + 64
    assert seconds[LINES] - seconds[0] < 3 * (seconds[LINES // 2] - seconds[0])


def test_a_log_is_never_whole_in_memory(tmp_path):
    """It is read before a resume and at the end."""
    long_log(tmp_path / "metrics.jsonl", 3000, 3000)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    RunLog(tmp_path / "other", restored_step=0, total_steps=3000).close()  # which imports
    tracemalloc.start()
    with contextlib.closing(RunLog(tmp_path, restored_step=2990, total_steps=3000)) as log:
        summary = spikes(read_metrics(tmp_path)), log.records
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert summary == ([], 2990) and peak < size / 2
    assert spike_scores(read_metrics(tmp_path)) == {"spike_score": {"loss": 0, "gradient_norm": 0}}
