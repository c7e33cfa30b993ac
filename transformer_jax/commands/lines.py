"""Lines that come in, and what goes out for them: files, or standard input and output ("-")."""

import sys
from pathlib import Path

from transformer_jax.data.files import decode_lines
from transformer_jax.devices import hosts


def read_lines(source: str) -> list[str]:
    """The lines on all hosts, as the first one reads them; they end at line feeds alone."""
    return hosts.first(lambda: _lines(source))


def _lines(source: str) -> list[str]:
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    return decode_lines(data, source) if data else []


def write(target: str, text: str) -> None:
    """Writes a file, or to standard output at once; from the first host alone."""
    if not hosts.is_first():
        return
    if target != "-":
        Path(target).write_text(text, "utf-8", newline="\n")
        return
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()
