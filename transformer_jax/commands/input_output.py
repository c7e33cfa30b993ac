"""Lines that come in, and what goes out for them: files, or standard input and output ("-")."""

import os
import sys
import tempfile
from pathlib import Path

from transformer_jax.data.read.open_file import decode_lines
from transformer_jax.process import hosts
from transformer_jax.runs.workdir import write_atomically


def read_lines(source: str) -> list[str]:
    """The lines on all hosts, as the first one reads them; they end at line feeds alone."""
    return hosts.first(lambda: _lines(source))


def _lines(source: str) -> list[str]:
    if source == "-" and sys.stdin is None:
        raise ValueError("standard input is closed: name a file with --input=FILE")
    if source != "-" and not Path(source).exists():
        raise FileNotFoundError(f'--input={source} is not there: name a file, or "-"')
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    return decode_lines(data, source) if data else []


def check_target(target: str) -> None:
    """Raises ValueError where `write` could not write; to be called before the work is done."""
    if not hosts.is_first():
        return
    path = Path(target).absolute()
    if target == "-":
        if sys.stdout is None:
            raise ValueError("standard output is closed: name a file with --output=FILE")
    elif path.is_dir():
        raise ValueError(f"--output={target} is a folder: name a file in it")
    elif not path.parent.is_dir():
        raise ValueError(f"--output={target}: there is no folder {path.parent}; make it first")
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"--output={target} cannot be written: choose another file")


def write(target: str, text: str) -> None:
    """Writes a file as a whole, or to standard output at once; from the first host alone.

    Raises OSError where that fails; the message names the file that has the text instead.
    """
    if not hosts.is_first():
        return
    if target == "-":
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    path = Path(target).resolve()
    try:
        if (path.is_file() or not path.exists()) and os.access(path.parent, os.W_OK):
            write_atomically(path, text)
        else:  # a device, a pipe
            path.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", delete=False) as file:
            file.write(text)
        raise OSError(
            f"--output={target} could not be written ({error.strerror}); the results are in "
            f"{file.name}"
        ) from error
