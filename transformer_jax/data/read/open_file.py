"""Lines and documents of text files, plain or packed, read piece by piece."""

import codecs
import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow
from absl import logging

_BLOCK = 2**20  # bytes that are read at a time
_LONG = 1_000_000  # characters; a line of more is hardly meant as one
LONGEST = 2**22  # characters of a document; a longer one is read as several
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how packed files begin


class Skipped:
    """Lines of a file that are no examples: counted where that is allowed, or refused."""

    def __init__(self, path: Path, allowed: bool):
        self._path = path
        self.allowed = allowed
        self._count = 0
        self._first = ""

    def add(self, number: int, why: str) -> None:
        """Raises ValueError where bad lines are not skipped."""
        where = f"{self._path}:{number}: {why}"
        if not self.allowed:
            raise ValueError(where)
        self._first = self._first or where
        self._count += 1

    def tell(self) -> None:
        """Warns of what was skipped."""
        if self._count:
            logging.warning(
                "data.skip_bad_lines: %d lines of %s are left out, the first is %s",
                self._count,
                self._path.name,
                self._first,
            )


def read_lines(path: Path, *, skip_bad: bool = False) -> Iterator[str | None]:
    r"""Yields the lines of a UTF-8 file, plain, .gz or .zst; with `skip_bad` None for a bad one.

    They end at "\n" alone; a "\r" before it is cut, as is a byte-order mark at the beginning. A
    warning tells of a line beyond all reason.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read, is empty, or has a line that is not UTF-8.
    """
    number, warned = 1, False
    for data in _whole_lines(path):
        lines = _decoded(data, str(path), number, skip_bad)
        if len(data) > _LONG and not warned:
            warned = _warn_of_long(path, lines, number)
        yield from lines
        number += len(lines)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The bytes of a file, a block at a time, each up to the end of a line, which it leaves out."""
    rest: list[bytes] = []
    for block in _blocks(path):
        end = block.rfind(b"\n")
        if end >= 0:
            yield b"".join([*rest, block[:end]])
            rest = []
        rest.append(block[end + 1 :])
    if last := b"".join(rest):
        yield last


def _warn_of_long(path: Path, lines: list[str | None], first: int) -> bool:
    """Whether a line is too long; warns of the first of them."""
    for number, line in enumerate(lines, start=first):
        if line and len(line) > _LONG:
            logging.warning(
                "%s:%d: a line of %.0f MB; such lines take much time and memory, so break it up if "
                "it is not meant as one line",
                path,
                number,
                len(line) / 1e6,
            )
            return True
    return False


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""The lines of UTF-8 text that is in memory, as `read_lines` has them.

    Raises:
        ValueError: a line that is not UTF-8; the message gives its number, and `name` for the text.
            Or the text is packed by gzip.
    """
    _check_packed(data, name)
    data = data.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n")
    return [line for line in _decoded(data, name, 1, False) if line is not None]


def read_documents(path: Path, separator: str, *, skip_bad: bool = False) -> Iterator[str]:
    r"""Yields the documents of plain text, which `separator` divides ("": the file is one).

    They do not include the separators, and those of white space alone are left out. Lines end at
    "\n" alone; a "\r" before it is cut. A document of more than `LONGEST` characters comes as
    several, divided before blanks, where no token reaches across: so memory need not hold it.
    With `skip_bad`, lines that are not UTF-8 are left out and counted.

    Raises:
        ValueError: there is no document, or as `read_lines`.
    """
    found, skipped = False, Skipped(path, skip_bad)
    for document in _divided(_texts(path, skipped), separator, str(path)):
        if document and not document.isspace():
            found = True
            yield document
    skipped.tell()
    if not found:
        raise ValueError(f"{path}: the file holds nothing but white space and separators")


def _divided(texts: Iterator[str], separator: str, name: str) -> Iterator[str]:
    rest = ""
    warned = False
    for text in texts:
        *whole, rest = (rest + text).split(separator) if separator else [rest + text]
        for document in whole:
            yield from _cut(document) if len(document) > LONGEST else [document]
        if len(rest) > LONGEST + len(separator):
            if not warned:
                logging.warning(
                    "%s: a document of more than %d characters is read as several", name, LONGEST
                )
                warned = True
            *parts, rest = _cut(rest)
            yield from parts
    yield rest


def _cut(document: str) -> Iterator[str]:
    """Parts of at most `LONGEST` characters: those after the first begin with a blank or a line."""
    start = 0
    while len(document) - start > LONGEST:
        end = start + LONGEST
        place = document.rfind(" ", start + 1, end)
        while document[place - 1] == "\n" and place > 0:  # that blank belongs to the line break
            place = document.rfind(" ", start + 1, place)
        if place < 0:
            place = document.rfind("\n", start, end - 1) + 1
        place = place if place > start else end
        yield document[start:place]
        start = place
    yield document[start:]


def _texts(path: Path, skipped: Skipped) -> Iterator[str]:
    """The text of a file in blocks, with the ends of lines as they are meant."""
    number, rest = 1, b""
    for block in _blocks(path):
        end = block.rfind(b"\n") + 1
        if end:
            data, rest = rest + block[:end], block[end:]
            lines = _decoded(data[:-1], str(path), number, skipped.allowed)
            yield "".join(f"{line}\n" for line in _kept(lines, number, skipped))
            number += len(lines)
        elif len(rest) < LONGEST:
            rest += block
        else:  # a line without end: it is decoded up to its last whole character
            text = codecs.getincrementaldecoder("utf-8")()
            data = rest + block
            try:
                yield text.decode(data)
            except UnicodeDecodeError as error:
                raise _no_text(str(path), number, data, error) from error
            rest = text.getstate()[0]
    if rest:
        yield from _kept(_decoded(rest, str(path), number, skipped.allowed), number, skipped)


def _kept(lines: list[str | None], first: int, skipped: Skipped) -> Iterator[str]:
    for number, line in enumerate(lines, start=first):
        if line is None:
            skipped.add(number, "not UTF-8")
        else:
            yield line


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked, without a byte-order mark."""
    empty = True
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise ValueError(f"{path}: cannot be read, as it is not a regular file")
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                if empty:
                    _check_packed(block, str(path))
                    block = block.removeprefix(codecs.BOM_UTF8)
                if block:
                    empty = False
                    yield block
    except FileNotFoundError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        if path.suffix == ".zst":
            raise ValueError(f"{path}: not a whole zstandard file ({error})") from error
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if empty:
        raise ValueError(f"{path}: the file is empty")


def _opened(path: Path) -> contextlib.AbstractContextManager[IO[bytes] | Any]:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        return pyarrow.CompressedInputStream(str(path), "zstd")
    return path.open("rb")


def _check_packed(data: bytes, name: str) -> None:
    for mark, packed, unpack, ending in (
        (_GZIP, "gzip", "gunzip", ".gz"),
        (_ZSTANDARD, "zstandard", "unzstd", ".zst"),
    ):
        if data.startswith(mark):
            raise ValueError(
                f"{name}: looks like {packed}, not like text; unpack it with {unpack}, or let the "
                f"name of a data file end in {ending}"
            )


def _decoded(data: bytes, name: str, first: int, skip_bad: bool) -> list[str | None]:
    """Lines without the end of the last one; `first` is the number of the first."""
    try:
        lines: list[str | None] = [*data.decode().split("\n")]
    except UnicodeDecodeError:
        lines = []
        for number, line in enumerate(data.split(b"\n"), start=first):
            try:
                lines.append(line.decode())
            except UnicodeDecodeError as error:
                if not skip_bad:
                    raise _no_text(name, number, line, error) from error
                lines.append(None)
    if b"\r" in data:
        lines = [line.removesuffix("\r") if line else line for line in lines]
    return lines


def _no_text(name: str, number: int, line: bytes, error: UnicodeDecodeError) -> ValueError:
    return ValueError(
        f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x}); convert the file, for "
        "example with iconv"
    )
