"""Commands that are killed at any moment, and called again, end as if nothing had been.

KILLS names a folder that several calls of pytest share. It holds the unbroken runs, and `log` with
a line for each kill, which `table.md` counts.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import pytest

from tests.checkpoint.states import arrays_of
from tests.faults.commands import COMMANDS, make_corpus, make_folder
from tests.processes import host_settings, wait_for
from transformer_jax.checkpoint.checkpoints import fault

TRIALS = int(os.environ.get("FAULT_TRIALS", "200"))  # of the long form
SHORT = {12, 29, 46}  # those that all tests run: they write a page
SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
# The modes, and the commands that go through each.
MODES = {
    mode: [name for name, other in COMMANDS.items() if mode in other.modes.values()]
    for command in COMMANDS.values()
    for mode in command.modes.values()
}
MOST_SECONDS = 240.0  # that an end takes, so that a hang is noticed
# What differs from one unbroken run to the next: times, and folders whose files hold or are named
# by them.
TIMES = re.compile(
    rb'"(?:time/\w+|seconds|date)": [^,}\n]+|[\d.e-]+ minutes in all|[\d-]+ \d\d:\d\d by '
)
UNREAD = {"tensorboard", "state", "__pycache__"}


class Span(NamedTuple):
    """A time that a process spent in a mode, in seconds; `end` is infinite if it was killed."""

    mode: str
    begin: float
    end: float


def read_spans(notes: Path, modes: dict[str, str]) -> list[Span]:
    """What the processes of a command have noted, in the order in which it began."""
    spans: list[Span] = []
    places: dict[tuple[str, str], int] = {}  # of what has not ended
    for line in notes.read_text().splitlines() if notes.exists() else ():
        moment, process, name = line.split(" ", 2)
        sign, name, seconds = name[0], name[1:], int(moment) / 1e9
        if sign == "+" and (mode := next((m for n, m in modes.items() if name.startswith(n)), "")):
            places[process, name] = len(spans)
            spans.append(Span(mode, seconds, float("inf")))
        for key in [key for key in places if sign == "-" and key[0] == process]:
            if name in (key[1], "all"):
                place = places.pop(key)
                spans[place] = spans[place]._replace(end=seconds)
    return spans


def mode_at(moment: float, spans: list[Span]) -> str:
    """The mode that was entered last of those that the processes are in."""
    inside = [span for span in spans if span.begin <= moment < span.end]
    return max(inside, key=lambda span: span.begin).mode if inside else "ended"


class Called:
    """A command that was called in a folder. What it notes and prints lies beside that folder."""

    def __init__(self, name: str, home: Path, corpus: Path, compiled: Path):
        self.name, self.command, self.home = name, COMMANDS[name], home
        beside = f"{home}.{len(list(home.parent.glob(f'{home.name}.*.notes')))}"
        self.notes = Path(f"{beside}.notes")
        self.notes.touch()
        paths = str(Path(__file__).parent / "noted"), os.environ["PYTHONPATH"]
        settings = os.environ | {
            "NOTES": str(self.notes),
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": os.pathsep.join(paths),
            "JAX_COMPILATION_CACHE_DIR": str(compiled),
        }
        words = [sys.executable, "-m", *self.command.program.replace("CORPUS", str(corpus)).split()]
        self.output = Path(f"{beside}.output")  # of all hosts
        with self.output.open("a") as file:
            self.processes = [
                subprocess.Popen(words, cwd=home, env=settings | host, stdout=file, stderr=file)
                for host in host_settings(self.command.hosts)
            ]

    def spans(self) -> list[Span]:
        return read_spans(self.notes, self.command.modes)

    def begin(self, mode: str, number: int) -> float | None:
        """Waits until the mode is entered for this time, and says when; None: it never is."""
        alive, size = True, 0
        while alive:
            alive = any(process.poll() is None for process in self.processes)
            if size != (size := self.notes.stat().st_size):
                entered = [span.begin for span in self.spans() if span.mode == mode]
                if len(entered) > number:
                    return entered[number]
            time.sleep(0.0003)
        return None

    def wait(self) -> list[int]:
        until = time.monotonic() + MOST_SECONDS
        return [process.wait(max(1.0, until - time.monotonic())) for process in self.processes]

    def text(self) -> str:
        return self.output.read_text()


def processes_of(home: Path) -> set[int]:
    """The processes alive that a command in this folder has started, at any remove."""
    mark, alive = f"TMPDIR={home}/tmp".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                alive.add(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return alive


def contents(home: Path) -> dict[str, Any]:
    """All that lies in a folder, by name, without times."""

    def content(path: Path) -> Any:
        if path.name == "state":
            return arrays_of(path.parent)
        if path.name == "manifest.json":  # of files that are named by times
            return fault(path.parent)
        if path.is_dir() or path.name == "log.txt" or path.name.endswith(".lock"):
            return None
        return TIMES.sub(b"", path.read_bytes().replace(str(home).encode(), b"@"))

    paths = [path.relative_to(home) for path in home.rglob("*")]
    return {str(path): content(home / path) for path in paths if not UNREAD & {*path.parts[:-1]}}


class Shared:
    """The corpus, the unbroken runs, what is compiled, and the log of kills."""

    def __init__(self, folder: Path):
        self.folder, self.corpus, self.log = folder, folder / "corpus", folder / "log"
        folder.mkdir(exist_ok=True)
        with filelock.FileLock(folder / "making"):
            if not self.corpus.exists():
                make_corpus(self.corpus)
        self.contents = functools.cache(lambda name: contents(self.unbroken(name)))

    def call(self, name: str, home: Path, mode: str = "") -> Called:
        """Calls a command; where it is to be killed while it compiles, nothing is compiled yet."""
        compiled = Path(f"{home}.compiled") if mode == "compile" else self.folder / "compiled"
        return Called(name, home, self.corpus, compiled)

    def begin(self, name: str, home: Path) -> None:
        """Makes the folder in which a command is called."""
        if before := COMMANDS[name].after:
            shutil.copytree(self.unbroken(before), home)
        else:
            make_folder(name, home, self.corpus)

    def unbroken(self, name: str) -> Path:
        """The folder of a command that nothing has disturbed."""
        home = self.folder / name.replace(" ", "_")
        notes = Path(f"{home}.notes")
        with filelock.FileLock(f"{home}.making"):
            while not notes.exists():
                for _ in range(2):  # the second time with what the first has compiled
                    shutil.rmtree(home, ignore_errors=True)
                    self.begin(name, home)
                    called = self.call(name, home)
                    assert not any(called.wait()), called.text()
                called.notes.rename(notes)
        return home

    def moment(self, name: str, mode: str, rng: np.random.Generator) -> tuple[int, float]:
        """Draws when to kill: so many seconds after the mode was entered for the time `number`."""
        spans = read_spans(Path(f"{self.unbroken(name)}.notes"), COMMANDS[name].modes)
        entered = [span for span in spans if span.mode == mode]
        last = max(span.end for span in spans if span.end < float("inf"))
        while True:
            number = int(rng.integers(len(entered)))
            _, begin, end = entered[number]
            after = float(rng.uniform(0, min(end, last) - begin))
            if mode_at(begin + after, spans) == mode:
                return number, after

    def table(self) -> str:
        """The kills by mode and signal."""
        kills = [line.split("\t") for line in self.log.read_text().splitlines()]
        names = [number.name for number in SIGNALS]
        rows = [["mode", *names, "all", "on two hosts"], 6 * ["---"]]
        for mode in [*MODES, "ended"]:
            pairs = [(kill[3], COMMANDS[kill[1]].hosts) for kill in kills if kill[2] == mode]
            counts = Counter(name for name, _ in pairs)
            two = sum(count == 2 for _, count in pairs)
            rows.append([mode, *[str(counts[name]) for name in names], str(len(pairs)), str(two)])
        return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{len(kills)} kills\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = os.environ.get("KILLS")
    shared = Shared(Path(folder) if folder else tmp_path_factory.mktemp("kills"))
    yield shared
    if shared.log.exists():
        (shared.folder / "table.md").write_text(shared.table())


def strike(called: Called, begin: float, after: float, rng: np.random.Generator) -> tuple[Any, ...]:
    """Sends a signal at a moment; returns the mode then, the signal, and which processes got it."""
    number, draw = SIGNALS[int(rng.integers(len(SIGNALS)))], rng.random()
    while (seconds := begin + after - time.monotonic()) > 0:
        time.sleep(max(0.0, seconds - 0.001))
    pids = {process.pid for process in called.processes}
    others = sorted(processes_of(called.home) - pids) if draw < 0.4 else []  # started by those
    whom = "all" if draw < 0.2 else "another" if others else "one"
    targets = {"all": [*pids, *others], "another": others, "one": sorted(pids)}[whom]
    now = time.monotonic()
    for process in targets if whom == "all" else [int(rng.choice(targets))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
    return mode_at(now, called.spans()), number, whom


def check_end(called: Called, number: signal.Signals, whom: str, early: bool) -> list[int]:
    """Waits for the end of what was killed: in order, and told in a line.

    early: whether the signal may have come before the first line of the program.
    """
    statuses, text, notes = called.wait(), called.text(), called.notes.read_text()
    late = any(f" {process.pid} -all" in notes for process in called.processes)  # after the last
    if -number in statuses and (early or late):
        return statuses
    assert "Traceback" not in text, text
    ends = {-number} if number == signal.SIGKILL else {128 + signal.SIGTERM, 128 + number}
    if whom != "one" or called.command.hosts > 1:
        # JAX aborts a host to which another one never comes.
        ends |= {1, -signal.SIGABRT} if "has waited" in text else {1}
    assert {*statuses} <= ends | {0}, (statuses, text)
    if max(statuses) > 1:  # a signal that was obeyed
        assert re.search(rf"(Interrupted|Stopping) \({number.name}\)|Stopping: ", text), text
    if 1 in statuses:
        assert "error: " in text or "runs are missing" in text, text
    return statuses


@pytest.mark.parametrize(
    "trial",
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.faults) for n in range(TRIALS)],
)
def test_a_command_that_is_killed_and_called_again_ends_as_if_it_had_not_been(
    shared, tmp_path, trial
):
    rng = np.random.default_rng(trial)
    mode = list(MODES)[trial % len(MODES)]
    name, home = str(rng.choice(MODES[mode])), tmp_path / "home"
    shared.begin(name, home)
    statuses, kills, most = [1], 0, int(rng.choice([1, 1, 2, 3]))
    while any(statuses) and kills < most:
        number, after = shared.moment(name, mode, rng)
        called = shared.call(name, home, mode)
        if (begin := called.begin(mode, number)) is None:
            statuses = called.wait()
            break
        hit, sent, whom = strike(called, begin, after, rng)
        early = hit in ("loading", "report") and after < 1
        statuses, kills = check_end(called, sent, whom, early), kills + 1
        line = trial, name, hit, sent.name, whom, f"{after:.3f} s into {mode}", statuses
        with shared.log.open("a") as file:
            file.write("\t".join(map(str, line)) + "\n")
    if any(statuses):
        called = shared.call(name, home, mode)
        # An import or export that was done when it was killed is refused.
        assert not any(called.wait()) or "already: choose another" in called.text(), called.text()
    wait_for(lambda: not processes_of(home), seconds=60)
    assert contents(home) == shared.contents(name)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["import", "export"])
def test_two_hosts_import_and_export_what_one_does(shared, name):
    assert shared.contents(f"{name} on two hosts") == shared.contents(name)
