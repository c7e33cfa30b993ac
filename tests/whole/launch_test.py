"""launch.sh with stand-ins for Python and pip, in a folder whose name has a space."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tracked import ROOT
from transformer_jax.commands import COMMANDS

pytestmark = pytest.mark.long

# Makes environments out of copies of itself, notes what pip is to install, and prints what main is
# called with. Compiles imports, where it may. Passes everything else to the real Python, without
# its packages.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
    "-c import pip") [[ "${{WITHOUT:-}}" != pip ]] ;;
    "-m venv --clear --without-pip "*)
        rm -rf "${{@: -1}}" && mkdir -p "${{@: -1}}/bin" && cp "$0" "${{@: -1}}/bin/python" ;;
    "-m pip --python "*" pip") [[ "${{WITHOUT:-}}" != index ]] && touch "${{4%python}}pip" ;;
    "-m ensurepip") touch "${{0%python}}pip" && echo its own >>"$PIP_CALLS" ;;
    *"-m pip "*) [[ -e "${{0%python}}pip" ]] && printf '%s\\n' "${{@: -1}}" >>"$PIP_CALLS" || exit
        eval "${{PIP_DOES:-}}" ;;
    *"-m transformer_jax.main "* | *"-m transformer_jax.tools.reports."* | \
    *"-m experiments.run "* | *"-m tensorboard.main "*)
        printf '%s\\n' "$JAX_PLATFORMS" "$PWD" "${{@:4}}" ${{SHOWN:+"${{!SHOWN}}"}} ;;
    "-P -c import "*) [[ -z "${{PYTHONDONTWRITEBYTECODE:-}}" ]] ;;
    "-m pytest "*) printf '%s\\n' "pytest ${{*: -3}}" ;;
    *) exec '{sys.executable}' -I -S "$@" ;;
esac
"""


class Clone:
    """A repository that holds launch.sh alone, and the machine that runs it."""

    def __init__(self, root: Path):
        self.path = root / "a clone"
        self.cwd = root / "elsewhere"
        self.bin = root / "bin"
        self.calls = root / "pip_calls"
        (self.path / "configs").mkdir(parents=True)
        self.cwd.mkdir()
        self.bin.mkdir()
        self.calls.touch()
        shutil.copy(ROOT / "launch.sh", self.path)
        table = "transformer_jax/commands/__init__.py"
        (self.path / table).parent.mkdir(parents=True)
        shutil.copy(ROOT / table, self.path / table)
        for name in ("pyproject.toml", "constraints.txt", "configs/mine.py"):
            (self.path / name).touch()
        self.add_command("python3.11", PYTHON)
        self.add_command("nvidia-smi", "#!/bin/sh\nexit 1\n")

    def add_command(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [self.path / "launch.sh", *arguments],
            cwd=self.cwd,
            env={**inherited, "PATH": path, "PIP_CALLS": str(self.calls), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def launch(self, *arguments: str, **environment: str) -> tuple[int, list[str], str]:
        """Returns the exit status, the lines of stdout, and stderr."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate()
        return process.returncode, out.splitlines(), err

    def installed(self) -> list[str]:
        """What pip was asked to install since the last call of this method."""
        calls = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return [call.removeprefix(str(self.path)) for call in calls]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize(
    ("command", "environment", "installed"),
    [
        ("", {}, [""]),
        # The newest pip cannot be had
        ("inspect", {"PYTHONDONTWRITEBYTECODE": "1", "WITHOUT": "pip"}, ["its own", ""]),
        ("evaluate '--workdir=runs/a b' --split=", {"WITHOUT": "index"}, ["its own", ""]),
        ("preflight --config.mesh.topology=v5e-16", {}, ["[preflight]"]),
        ("experiment gradients --quick", {}, [""]),
        ("experiment --help", {}, [""]),
        ("report 'runs/a b' runs/c --output=x", {}, [""]),
        ("tensorboard --logdir=runs", {}, ["[tensorboard]"]),
    ],
)
def test_a_first_call_installs_what_it_needs_and_a_second_nothing(
    clone: Clone, command: str, environment: dict[str, str], installed: list[str]
):
    """Flags arrive unchanged, in the current directory."""
    arguments = shlex.split(command)
    mode, flags = arguments[:1] or ["train"], arguments[1:]
    if not arguments:
        flags = [f"--config={clone.path}/configs/quickstart.py"]
        flags.append(f"--workdir={clone.path}/runs/quickstart")
    if mode[0] not in ("experiment", "report", "tensorboard"):
        flags.insert(0, f"--mode={mode[0]}")
    for expected in (installed, []):
        status, out, err = clone.launch(*arguments, **environment)
        assert (status, out[-1 - len(flags) :]) == (0, [str(clone.cwd), *flags])
        assert clone.installed() == expected and (expected or not err)


def test_every_mode_of_the_command_line_is_a_command(clone: Clone):
    clone.launch("setup")
    for mode in COMMANDS:
        _, out, _ = clone.launch(mode, "--workdir=runs/a")
        assert out[-2:] == [f"--mode={mode}", "--workdir=runs/a"]


def test_a_config_is_taken_from_the_current_directory_else_from_the_repository(clone: Clone):
    clone.launch("setup")
    _, out, _ = clone.launch("train", "--config=")
    assert out[-1] == "--config="
    _, out, _ = clone.launch("train", "--config=configs/mine.py:large")
    assert out[-1] == f"--config={clone.path}/configs/mine.py:large"
    (clone.cwd / "configs").mkdir()
    (clone.cwd / "configs/mine.py").touch()
    for name in ("configs/mine.py", "configs/missing.py", f"{clone.path}/configs/mine.py"):
        _, out, _ = clone.launch("train", f"--config={name}")
        assert out[-1] == f"--config={name}"


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt", ""])
def test_a_changed_requirement_or_a_moved_clone_installs_again(clone: Clone, changed: str):
    clone.launch("setup")
    if changed:
        (clone.path / changed).write_text("numpy==2.1.0\n")
    else:
        clone.path = clone.path.rename(clone.path.with_name("moved"))
    clone.installed()
    clone.launch("setup")
    clone.launch("setup")
    assert clone.installed() == ["[dev]"]


def test_extras_are_added_when_a_command_needs_them_and_then_stay(clone: Clone):
    clone.launch()
    clone.launch("setup")
    clone.launch("train", "--device=cuda")
    clone.launch("tensorboard")
    assert clone.installed() == ["", "[dev]", "[dev,cuda]", "[dev,cuda,tensorboard]"]
    clone.launch()
    clone.launch("setup")
    clone.launch("preflight")  # which has an environment of its own
    assert clone.installed() == ["[preflight]"]


@pytest.mark.parametrize("accident", ["exit 1", "kill -KILL $PPID"])
def test_an_installation_that_broke_off_is_done_again(clone: Clone, accident: str):
    status, out, _ = clone.launch("inspect", PIP_DOES=accident)
    assert status != 0
    assert "--mode=inspect" not in out
    clone.launch("inspect")
    assert clone.installed() == ["", ""]
    # The same holds for an extra that is added to a whole environment.
    status, _, _ = clone.launch("setup", PIP_DOES=accident)
    assert status != 0
    clone.launch("inspect")
    assert clone.installed() == ["[dev]", ""]


def test_long_forms_run_alone_and_only_when_asked_for(clone: Clone):
    for name in ("ruff", "lint-imports", "pyright"):
        clone.add_command(name, f'#!/bin/sh\necho {name} "$@"\n')
    clone.launch("setup")
    tests = "pytest -m not long and not faults"
    for files in "", " a.py":  # outside of git all files, else what it tracks
        status, out, _ = clone.launch("test", "-x")
        checks = [f"ruff format --check{files}", f"ruff check{files}", "lint-imports"]
        assert (status, out) == (0, [*checks, f"{tests} -x", f"pyright{files}"])
        (clone.path / "a.py").touch()
        subprocess.run(["git", "-C", clone.path, "init", "--quiet"], check=True)
        subprocess.run(["git", "-C", clone.path, "add", "a.py"], check=True)
    clone.add_command("pyright", "#!/bin/sh\necho wrong types; exit 1\n")
    status, out, _ = clone.launch("test", "-x")
    assert (status, out[-2:]) == (1, [f"{tests} -x", "wrong types"])
    status, out, _ = clone.launch("test", "tests/one_test.py")
    assert (status, out) == (0, [f"{tests} tests/one_test.py"])
    status, out, _ = clone.launch("test", "--long", "tests/one_test.py")
    assert (status, out) == (0, ["pytest -m long tests/one_test.py"])
    one = "-x tests/faults/one_test.py"
    for words, run in ("-x", "tests/faults -x"), (one, one):
        status, out, _ = clone.launch("test", "--faults", *words.split())
        assert (status, out) == (0, [f"pytest  {run}"])


def test_two_launches_at_once_install_once(clone: Clone, tmp_path: Path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = clone.start("inspect", PIP_DOES=f"read -r <'{gate}'")
    assert first.stdout is not None
    assert "Installing" in first.stdout.readline()
    second = clone.start("inspect")
    assert second.stdout is not None
    assert "Waiting" in second.stdout.readline()
    gate.write_text("go\n")
    for process in (first, second):
        out, _ = process.communicate()
        assert "--mode=inspect" in out.splitlines()
    assert clone.installed() == [""]


def test_a_gpu_is_used_where_there_is_one_unless_another_device_is_named(clone: Clone):
    clone.add_command("nvidia-smi", "#!/bin/sh\necho 'GPU 0: a GPU'\n")
    _, out, _ = clone.launch("compare", "runs/a")
    assert out[-3] == "cpu" and clone.installed() == [""]
    _, out, _ = clone.launch("inspect")
    assert out[-3] == "cuda,cpu"
    _, out, _ = clone.launch("inspect", "--device=cpu")
    assert out[-3] == "cpu"
    _, out, _ = clone.launch("inspect", JAX_PLATFORMS="tpu")
    assert out[-3] == "tpu"
    _, out, _ = clone.launch("inspect", "--device=cuda", JAX_PLATFORMS="cpu")
    assert out[-3] == "cuda,cpu"
    assert clone.installed() == ["[cuda]"]


def test_packages_of_the_users_of_the_same_names_come_after_those_of_the_repository(clone):
    """Such as `configs` and `experiments`."""
    for command in (["inspect"], ["experiment", "gradients"]):
        _, out, _ = clone.launch(*command, SHOWN="PYTHONPATH", PYTHONPATH="/mine:/ours")
        assert out[-1] == f"{clone.path}:/mine:/ours"
    _, out, _ = clone.launch("inspect", SHOWN="PYTHONPATH", PYTHONPATH="")
    assert out[-1] == str(clone.path)
