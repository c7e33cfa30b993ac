"""Damaged storage: each file of a work directory and its caches, each damage, each command.

A command gives what it gives on the sound folder, or ends in one message that names the file; then
every other file is as it was.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tests.data.toy  # noqa: F401  # which TFDS knows from then on
from tests.checkpoint.states import arrays_of
from tests.faults import endings
from tests.tools.convert import llama
from tests.whole.command_line import CONFIG, call, records, results, timeless
from transformer_jax.checkpoint import checkpoints
from transformer_jax.config.load import load, to_json
from transformer_jax.configs import default
from transformer_jax.tools.reports import report

TRIALS = int(os.environ.get("FAULT_TRIALS", "200"))  # of the long form
RUNS = {
    # Starts from an imported model, so that it has all files of a tokenizer.
    "language_model": {
        "data.train": ("words",),
        "data.validation": ("words",),
        "data.test": (),
        "checkpoint.init_from": "imported",
        "evaluate.samples": ("w5 w6",),
        "decode.method": "greedy",
    },
    "classes": {
        "model.architecture": "encoder_only",
        "model.residual": "admin",
        "task.name": "classification",
        "data.source": "labelled",
        "data.train": ("labelled",),
        "data.validation": ("labelled",),
        "data.test": ("labelled",),
    },
    # A set of TFDS, whose own files lie in the cache.
    "catalogue": {
        "data.source": "tfds",
        "data.name": "toy_translation",
    },
}
COMMANDS = {
    "resume": "--workdir=run --config.train.steps=8",
    "begin": "--config=config.json --workdir=new --config.train.steps=2",
    "show": "--workdir=run",
    "evaluate": "--workdir=run --mode=evaluate --split=validation",
    "generate": "--workdir=run --mode=generate --input=lines --output=written",
    "export": "--workdir=run --mode=export --output=exported",
}
COMMANDS["decode"] = COMMANDS["begin"]  # once nothing is left of what was made of a set of TFDS
# The commands that read the files of a folder.
READ_BY = {
    "run/checkpoints": ("resume", "evaluate", "generate", "export"),
    "run": ("resume", "show", "evaluate", "generate", "export", "report"),
    "cache": ("begin", "evaluate"),
    "cache/tfds": ("decode",),
}


class Executed:
    """A pickle of it makes a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled(data):
    """A program, for whoever unpickles it: an array of objects, or a plain pickle."""
    file = io.BytesIO()
    if data.startswith(b"\x93NUMPY"):
        np.save(file, np.array([Executed()], object))
    else:
        pickle.dump(Executed(), file)
    return file.getvalue()


def flipped(data, places, draw, bit=None):
    """A bit of one of these bytes is another."""
    changed = bytearray(data)
    changed[draw.choice(places)] ^= 1 << (draw.randrange(8) if bit is None else bit)
    return bytes(changed)


def digits(data):
    """The places of the digits of a text, or of all bytes of what is none."""
    places = [match.start() for match in re.finditer(rb"\d", data)]
    return places if places and b"\0" not in data else range(len(data))


# What becomes of the bytes of a file, by a random.Random and the same file of another run.
DAMAGES: dict[str, Callable[[bytes, random.Random, bytes], bytes]] = {
    "truncated": lambda data, draw, _: data[: draw.randrange(len(data))],
    "flipped": lambda data, draw, _: flipped(data, range(len(data)), draw),
    "digit": lambda data, draw, _: flipped(data, digits(data), draw, bit=0),
    "emptied": lambda *_: b"",
    "exchanged": lambda data, draw, other: other,
    "of another version": lambda data, *_: (
        b'{"format": 99, ' + data[1:] if data[:1] == b"{" else bytes([data[0] ^ 1]) + data[1:]
    ),
    "pickled": lambda data, *_: pickled(data),
}


def train(folder, name, seed):
    """A finished run of this name in `folder`, with all that belongs to it."""
    words = np.random.default_rng(seed).integers(4, 12, (60, 4))
    folder.mkdir()
    lines = [" ".join(f"w{word}" for word in line) for line in words]
    (folder / "words").write_text("".join(f"{line}\n" for line in lines))
    labelled = [f"{'yes' if sum(line) % 2 else 'no'} w{line[0]}\n" for line in words]
    (folder / "labelled").write_text("".join(labelled))
    (folder / "lines").write_text("w5 w6\nw7\n" if name != "catalogue" else "train 1\n")
    os.chdir(folder)
    start: dict = {}
    if name == "language_model":
        llama.checkpoint(folder / "theirs")
        assert call("--mode=import", "--checkpoint=theirs", "--workdir=imported") == 0
        flat = json.loads(Path("imported/config.json").read_text())["model"]
        start = {f"model.{key}": value for key, value in flat.items()}
    changes = {"data.dir": str(folder), "data.cache_dir": "cache", "seed": seed}
    changes |= {"train.log_every": 1, "checkpoint.every": 4}
    config = load(default.__file__, CONFIG | start | changes | RUNS[name])
    Path("config.json").write_text(to_json(config))
    assert call("--config=config.json", "--workdir=run") == 0
    if name == "language_model":
        assert call("--workdir=run", "--mode=replay", "--step=5") == 0
    return folder


def trained(workdir):
    """What a training has logged and scored, and all arrays of its newest checkpoint."""
    folder = max((workdir / "checkpoints").resolve().iterdir(), key=lambda path: int(path.stem))
    return records(workdir), timeless(results(workdir)), arrays_of(checkpoints.whole(folder))


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class Outcome(NamedTuple):
    """The exit status of a command, what it gives, and what it says of it."""

    status: int
    output: Any
    message: str
    changed: frozenset[str] = frozenset()  # files that were there before
    done: Any = None  # what was done before to the copy of a folder


def outcome_of(command) -> Outcome:
    """What a command gives in the current folder."""
    if command == "report":
        ending = endings.in_process(lambda: report.main(["run", "--output=page.html"]))
    else:
        ending = endings.call(*COMMANDS[command].split())
    if ending.status != 0:
        return Outcome(ending.status, None, ending.err)
    workdir = Path("run" if command == "resume" else "new")
    if command in ("resume", "begin", "decode"):
        output = trained(workdir)
    elif command == "export":
        output = contents(Path("exported"))
    elif command == "evaluate":
        output = timeless(results(Path("run")))
    elif command == "show":
        output = re.sub("(time/wall_seconds) .*|The files of .*", "", ending.out)
    else:
        output = Path("page.html" if command == "report" else "written").read_text("utf-8")
        output = output.replace(str(Path.cwd()), "")
    return Outcome(ending.status, output, ending.err)


def on_copy(folder, place, command, change=lambda copy: None) -> Outcome:
    """What a command gives on a copy of a folder in `place`, after a change to it."""
    copy = Path(tempfile.mkdtemp(dir=place)) / "copy"  # of which this process holds no lock
    shutil.copytree(folder, copy)
    with contextlib.chdir(copy):
        done = change(copy)
        if command == "decode":
            for path in (*Path("cache").glob("sets"), *Path("cache").glob("tfds/*/*/columns")):
                shutil.rmtree(path)
        before = contents(copy)
        outcome = outcome_of(command)
        after = contents(copy)
        assert not Path("executed").exists(), "a pickle was loaded"
    shutil.rmtree(copy.parent)
    changed = frozenset(name for name, data in before.items() if after.get(name) != data)
    return outcome._replace(changed=changed, done=done)


@dataclasses.dataclass
class Sound:
    """A folder with a run, its name, and what commands give there."""

    name: str
    folder: Path
    known: dict[str, Outcome] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def other(self) -> Path:
        """A folder with the same files of another run."""
        with contextlib.chdir(self.folder):
            return train(self.folder.parent / "other", self.name, 1)

    def expected(self, command) -> Outcome:
        """What a command gives; the test is skipped where there is no such command for the run."""
        if command not in self.known:
            self.known[command] = on_copy(self.folder, self.folder.parent, command)
        outcome = self.known[command]
        if "no counterpart" in outcome.message or "generates nothing" in outcome.message:
            pytest.skip(f"{command} does not know such a run")
        assert outcome.status == 0, outcome.message
        return outcome


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.faults] * (name != "classes")) for name in RUNS],
)
def sound(request, tmp_path_factory, compiled_once):
    home = tmp_path_factory.mktemp(request.param)
    with contextlib.chdir(home):  # which `train` leaves for others
        return Sound(request.param, train(home / "one", request.param, 0))


def files(folder, area):
    """The names of all files of an area that belong to no area within it."""
    names = [name for name in contents(folder) if name.startswith(f"{area}/")]
    within = tuple(f"{other}/" for other in READ_BY if other.startswith(f"{area}/"))
    return [name for name in names if not name.startswith(within)]


def harmed(folder, name, damage, other):
    """Does the damage to a file; False where the file cannot have it."""
    path, victim = folder / name, folder.parent.parent / "victim"
    if damage == "deleted":
        path.unlink()
    elif damage == "linked":  # to a file outside, which is the user's
        shutil.move(path, victim)
        path.symlink_to(victim)
    else:
        data, source = path.read_bytes(), other / name
        theirs = source.read_bytes() if source.is_file() else data
        blob = DAMAGES[damage](data, random.Random(f"{name} {damage}"), theirs) if data else None
        if not data or blob == data:
            return False
        path.write_bytes(blob)
    return True


def check_damage(sound, place, caplog, command, name, damage):
    """Tries a damage to a file on a command; returns whether the file can have it."""
    caplog.clear()
    other = sound.other if damage == "exchanged" else sound.folder
    harm = functools.partial(harmed, name=name, damage=damage, other=other)
    outcome, victim = on_copy(sound.folder, place, command, harm), place / "victim"
    if victim.exists():
        whole = victim.read_bytes() == (sound.folder / name).read_bytes()
        assert whole, f"{name} {command}: it was written to through the link"
        victim.unlink()
    if not outcome.done:
        return False
    words, expected = outcome.message + caplog.text, sound.expected(command)
    folders = [str(path) for path in Path(name).parents if len(path.parts) > 2]
    named = any(text in words for text in (Path(name).name, *folders))
    case = f"{name} {damage} {command}: {words[-600:]}"
    if outcome.status != 0:
        assert words.count("error: ") == 1 and "Traceback" not in words, case
        assert "mistake of the program" not in words, case
        assert not outcome.changed - {name} and named, f"{case}, {outcome.changed} changed"
    elif outcome.output != expected.output:
        # What was deleted is lost; what anyone may edit has no sums and versions, samples no form.
        editable = name.startswith("run/") and not name.startswith("run/checkpoints/")
        formless = set() if name.endswith(".txt") else {"pickled"}
        unseen = {"deleted"} | (set(DAMAGES) - formless if editable else set())
        older = named and "is passed over" in words  # a checkpoint before it
        assert older or damage in unseen, f"{case}, {str(outcome.output)[:600]}"
    return True


QUICK = "show", "evaluate", "generate"
QUICK_FIRST = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.faults) for name in ("resume", "export", "report")),
]
CASES = [
    (area, command, damage)
    for area, commands in READ_BY.items()
    for command in commands
    for damage in (*DAMAGES, "deleted", "linked")
]


@pytest.mark.faults
@pytest.mark.parametrize(("area", "command", "damage"), CASES)
def test_any_damage_of_any_file(sound, tmp_path, caplog, area, command, damage):
    sound.expected(command)
    names = files(sound.folder, area)
    if not names or (sound.name == "catalogue" and not area.startswith("cache")):
        pytest.skip("there is no such file, or another run tries the same")
    count = sum(check_damage(sound, tmp_path, caplog, command, name, damage) for name in names)
    print(f"TRIED {sound.name} {area} {command} {damage}: {count} files")


@pytest.mark.parametrize("seed", range(3))
def test_some_damage_of_some_file(sound, tmp_path, caplog, seed):
    draw = random.Random(seed)
    area, command, damage = draw.choice([case for case in CASES if case[1] in QUICK])
    name = draw.choice(files(sound.folder, area))
    check_damage(sound, tmp_path, caplog, command, name, damage)


@pytest.fixture
def disk(tmp_path):
    """A file system of 64 MiB of memory."""
    place = tmp_path / "disk"
    place.mkdir()
    command = f"mount -t tmpfs -o size=64m tmpfs {place}"
    if subprocess.run(command.split(), capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize(
    "trial",
    [0, *(pytest.param(n, marks=pytest.mark.faults) for n in range(1, TRIALS // len(RUNS)))],
)
def test_a_disk_that_is_full_at_any_moment(sound, disk, caplog, trial):
    """One message says so, and then the same command gives what it gives elsewhere."""
    draw = random.Random(trial)
    command = draw.choice(["begin", "resume", "evaluate", "generate", "export", "report"])
    expected = sound.expected(command)
    copy, page = disk / "copy", os.sysconf("SC_PAGE_SIZE")
    shutil.copytree(sound.folder, copy)
    if command == "begin":
        shutil.rmtree(copy / "cache")  # so that data and tokenizer are written too
    with contextlib.chdir(copy):
        with (disk / "filler").open("wb") as file:
            for _ in range(os.statvfs(disk).f_bavail - int(2 ** draw.uniform(0, 9))):
                file.write(bytes(page))
        outcome = outcome_of(command)
        (disk / "filler").unlink()
        if outcome.status:
            words = outcome.message + caplog.text
            assert words.count("error: ") == 1 and "Traceback" not in words, words
            assert "space left" in words or "enough disk space" in words, words  # TFDS's words
            outcome = outcome_of(command)
    assert (outcome.status, outcome.output) == (0, expected.output), outcome.message


@pytest.mark.parametrize("command", QUICK_FIRST)
def test_a_disk_that_is_read_only(sound, disk, command, tmp_path):
    """What only reads gives the same; training says that nothing can be written there."""
    expected = sound.expected(command)
    shutil.copytree(sound.folder, disk / "copy")
    (tmp_path / "here").mkdir()
    for name in ("run", "cache", "lines", "imported"):
        (tmp_path / "here" / name).symlink_to(disk / "copy" / name)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with contextlib.chdir(tmp_path / "here"):
        outcome = outcome_of(command)
    if command == "resume":
        assert outcome.status == 1 and "run cannot be written" in outcome.message
    elif command != "evaluate":  # which prints what it has no place for
        assert outcome[:2] == expected[:2], outcome.message
    assert outcome.status == (command == "resume"), outcome.message


def leave_what_killed_processes_leave(copy):
    """Locks that nobody holds, and files that were never finished; all files are of the future."""
    for path in [*copy.glob("cache/*/*"), *copy.glob("cache/*/*/*")]:
        path.with_name(f"{path.name}.lock").touch()
        path.with_name(f"{path.name}.unfinished").mkdir(exist_ok=True)
    for name in ("results.json", "config.json", "metrics.jsonl", "samples.txt"):
        (copy / "run" / f"{name}.tmp").write_text("half")
    (copy / "run/.lock").write_text("process 1 on another host")
    for name in ("run/checkpoints/9.tmp", ".exported.unfinished_export"):
        (copy / name).mkdir()
        (copy / name / "half").touch()
    for path in copy.rglob("*"):
        os.utime(path, (4e9, 4e9))


@pytest.mark.parametrize("command", QUICK_FIRST)
def test_stale_locks_and_a_clock_that_goes_back_change_nothing(
    sound, tmp_path, monkeypatch, command
):
    """Both at once, as nothing that asks for the time asks for what was left."""
    expected, times = sound.expected(command), iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    outcome = on_copy(sound.folder, tmp_path, command, leave_what_killed_processes_leave)
    assert outcome[:2] == expected[:2], outcome.message


@pytest.mark.faults
@pytest.mark.parametrize("damage", [*DAMAGES, "deleted"])
def test_damaged_programs_are_compiled_again(sound, tmp_path, damage):
    """In a process, since XLA would crash it; all of them at once."""
    if sound.name == "catalogue":
        pytest.skip("no other process knows its set")
    environment = {name: os.environ[name] for name in os.environ if "CACHE_DIR" not in name}
    command = [sys.executable, "-m", "transformer_jax.main", *COMMANDS["begin"].split()]
    copy = tmp_path / "copy"
    shutil.copytree(sound.folder, copy)
    for attempt in range(2):
        subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
        assert trained(copy / "new") == sound.expected("begin").output
        shutil.rmtree(copy / "new")
        programs = [path for path in copy.glob("cache/compiled/*/*") if path.stat().st_size > 8]
        assert len(programs) > 1
        for path in programs * (not attempt):
            harmed(copy, str(path.relative_to(copy)), damage, copy)
