"""How a command ends, in this process or as one of its own, and what is wrong with that."""

import contextlib
import io
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from absl import flags

from tests.whole import command_line
from transformer_jax.inspection import memory
from transformer_jax.run import Run
from transformer_jax.runs.workdir import read_results
from transformer_jax.tools import coordinate_check
from transformer_jax.tools.preflight import report as preflight
from transformer_jax.tools.show import inspect

SECONDS = 120  # beyond which a command hangs
GIBIBYTES = 2  # by which this process may grow in one command
MAIN = "transformer_jax.main"


class Ending(NamedTuple):
    """The exit status of a command, and what it printed."""

    status: int
    out: str
    err: str


class Compiling(BaseException):
    """Raised where a program would be compiled: nothing that is refused before it was."""


def in_process(command: Callable[[], Any], stdin: bytes = b"") -> Ending:
    """How a function ends that a command line calls, with these bytes as standard input."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin)), "stdout": out, "stderr": err}
    with pytest.MonkeyPatch.context() as patch, _bounded():
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        try:
            status = command()
        except Compiling:
            status = 0
        except SystemExit as error:  # argparse's
            status = int(error.code or 0)
        except (flags.Error, ValueError) as error:  # main.run tells of it, in these words
            status = print(f"error: {error}", file=err) or 1
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))  # pyright: ignore
    return Ending(status, *texts)


def call(*arguments: str, stdin: bytes = b"") -> Ending:
    """How the command line ends."""
    return in_process(lambda: command_line.call(*arguments), stdin)


def as_process(*arguments: str, module: str = MAIN, stdin: bytes = b"") -> Ending:
    """How a process ends that is started with these arguments."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=SECONDS)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Ending(done.returncode, out, err)


@contextlib.contextmanager
def short_of_compiling(see: Callable[[Run], None] | None = None) -> Iterator[None]:
    """Has commands end with `Compiling` where they would compile; `see` gets what would train.

    `inspect` traces no step, and packs few rows. Without `see` no memory is counted, either.
    """

    def compiling(run, *_, **__):
        if see is not None:
            see(run)
        raise Compiling

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "compiled_step", compiling)
        if see is None:
            patch.setattr(memory, "check", lambda *_: None)
            patch.setattr(memory, "table", lambda run: ())
        patch.setattr(coordinate_check, "_train", compiling)
        patch.setattr(preflight, "report", compiling)
        patch.setattr(preflight, "search", compiling)
        patch.setattr(inspect, "product_flops", lambda traced: 0.0)
        patch.setattr(inspect, "_ROWS", 2)
        patch.setattr(Run, "train_step", lambda *_: SimpleNamespace(trace=lambda *_: None))
        yield


def check_ending(ending: Ending, names: Iterable[str], case: str, workdir=None) -> None:
    """Asserts that a command has run, or ended in one message.

    names: texts one of which an error has to mention. case: what a failure tells, of `call_text`.
    workdir: the path of a training's, which may diverge.
    """
    status, err = ending.status, ending.err
    errors = re.findall(r"^(?:[\w .-]+: )?error: .*", err, re.M)
    assert "Traceback" not in err and "mistake of the program" not in err, case
    if errors:
        assert status in (1, 2) and len(errors) == 1, f"{len(errors)} messages, {status}{case}"
        message = err[err.index(errors[0]) :]
        assert len(message) <= 4000, f"{len(message)} characters{case}"
        assert any(name in message for name in names), f"its message names nothing given{case}"
    elif status != 0:
        assert status == 1 and workdir, f"it ends with status {status} and no message{case}"
        assert read_results(workdir).get("status") == "diverged", f"it has no message{case}"


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Fails where what is inside hangs, or takes too much memory."""

    def late(*_):
        raise AssertionError(f"it takes more than {SECONDS} seconds")

    before, previous = _most_memory(), signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert _most_memory() < before + GIBIBYTES, f"it takes {_most_memory() - before:.1f} GiB"


def _most_memory() -> float:
    """GiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def call_text(arguments: Sequence[Any], ending: Ending | None = None, module: str = MAIN) -> str:
    """A command line with its ending, to run it again."""
    command = " ".join(["python -m", module, *map(shlex.quote, map(str, arguments))])
    texts = (ending.out[-600:], ending.err[-3000:]) if ending else ()
    return "\n".join(["", command, *texts])
