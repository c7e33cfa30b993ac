"""Lines and documents of text files, plain or packed, read piece by piece."""

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import logging

_BLOCK = 2**20  # characters that are read at a time
_LONG = 1_000_000  # characters, or bytes; a line of more is hardly meant as one
LONGEST = 2**22  # characters of a document; a longer one is read as several
# How packed files begin, what they are, what unpacks them, and how their names end.
_PACKERS = (
    (b"\x1f\x8b", "gzip", "gunzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstandard", "unzstd", ".zst"),
)
PACKED = tuple(ending for *_, ending in _PACKERS)


class Skipped:
    """Lines of a file that are no examples: counted where that is allowed, or refused."""

    def __init__(self, path: Path, allowed: bool):
        self._path = path
        self._allowed = allowed
        self._count = 0
        self._first = ""

    def add(self, number: int, why: str) -> None:
        """Raises ValueError where bad lines are not skipped."""
        where = f"{self._path}:{number}: {why}"
        if not self._allowed:
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
        ValueError: it cannot be read, is empty, has a line that is not text in UTF-8, or lines that
            end in "\r" alone.
    """
    with _opened(path) as text:
        yield from _lines(text, str(path), skip_bad)


def find(path: Path) -> Path:
    """The file, or where there is none the one with .gz or .zst added."""
    others = [path.with_name(f"{path.name}{packed}") for packed in PACKED]
    for candidate in (path, *others):
        if candidate.exists():
            return candidate
    raise FileNotFoundError(
        f"{path}: there is no such file, nor {' or '.join(other.name for other in others)} (named "
        "by data.train, data.validation or data.test, in the folder data.dir; of parallel text by "
        "data.source_language and data.target_language, too)"
    )


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""The lines of UTF-8 text that is in memory, as `read_lines` has them.

    Raises:
        ValueError: a line that is not UTF-8; the message gives its number, and `name` for the text.
            Or the text is packed by gzip.
    """
    with _decoded(io.BufferedReader(io.BytesIO(data), _LONG), name) as text:
        return [line for line in _lines(text, name, False) if line is not None]


def read_documents(path: Path, separator: str, *, skip_bad: bool = False) -> Iterator[str]:
    r"""Yields the documents of plain text, which `separator` divides ("": the file is one).

    They do not include the separators, and those of white space alone are left out. Lines end at
    "\n" alone; a "\r" before it is cut. A document of more than `LONGEST` characters comes as
    several, divided before blanks, where no token reaches across: so memory need not hold it.
    With `skip_bad`, lines that are not UTF-8 are left out and counted.

    Raises:
        ValueError: there is no document, or as `read_lines`.
    """
    nonempty, skipped = False, Skipped(path, skip_bad)
    for document in _divided(_texts(path, skipped), separator, path):
        if document and not document.isspace():
            nonempty = True
            yield document
    skipped.tell()
    if not nonempty:
        raise ValueError(f"{path}: the file holds nothing but white space and separators")


def _divided(texts: Iterator[str], separator: str, path: Path) -> Iterator[str]:
    rest = ""
    warned = False
    for text in texts:
        *whole, rest = (rest + text).split(separator) if separator else [rest + text]
        for document in whole:
            yield from _cut(document)
        if len(rest) > LONGEST + len(separator):
            if not warned:
                logging.warning(
                    "%s: a document of more than %d characters is read as several", path, LONGEST
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
    """The text of a file in blocks of whole lines, unless a line is without end."""
    number = 1
    with _opened(path) as text:
        while block := text.read(_BLOCK) + text.readline(LONGEST):
            while block.endswith("\r") and (more := text.readline(LONGEST)):
                block += more
            first, number = number, number + block.count("\n")
            if _no_text(block):
                block = "".join(_good_lines(block, first, skipped))
            yield block.replace("\r\n", "\n").removesuffix("\r")


def _good_lines(block: str, first: int, skipped: Skipped) -> Iterator[str]:
    """The lines of a block with their ends; `first` is the number of the first."""
    for number, line in enumerate(io.StringIO(block, newline="\n"), start=first):
        if why := _no_text(line):
            skipped.add(number, why)
        else:
            yield line


def _lines(text: io.TextIOWrapper, name: str, skip_bad: bool) -> Iterator[str | None]:
    """The lines without their ends; None for one that is not UTF-8, where that is allowed."""
    warned = False
    for number, whole in enumerate(text, start=1):
        line = whole.removesuffix("\n").removesuffix("\r")
        if len(line) > _LONG and not warned:
            warned = True
            logging.warning(
                "%s:%d: a line of %.0f MB; such lines take much time and memory, so break it up if "
                "it is not meant as one line",
                name,
                number,
                len(line) / 1e6,
            )
        why = _no_text(line)
        if why and not skip_bad:
            raise ValueError(f"{name}:{number}: {why}")
        yield None if why else line


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """The text of a file, as `_decoded` has it. Raises as `read_lines`, but for its lines."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise ValueError(f"{path}: cannot be read, as it is not a regular file")
        with io.BufferedReader(_unpacked(path), _LONG) as file, _decoded(file, str(path)) as text:
            if file.peek() in (b"", codecs.BOM_UTF8):
                raise ValueError(f"{path}: the file is empty")
            yield text
    except FileNotFoundError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        if path.suffix == ".zst":
            raise ValueError(f"{path}: not a whole zstandard file ({error})") from error
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def _unpacked(path: Path) -> Any:
    """The bytes of a file, unpacked where its name says that they are packed."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        import pyarrow  # only here, as in `parse`: few files need it

        return pyarrow.CompressedInputStream(str(path), "zstd")
    return path.open("rb", buffering=0)


@contextlib.contextmanager
def _decoded(file: io.BufferedReader, name: str) -> Iterator[io.TextIOWrapper]:
    """Bytes as text without a byte-order mark; what is not UTF-8 becomes half characters in it.

    Raises ValueError where the bytes are packed, or lines end in "\r" alone.
    """
    with io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="\n") as text:
        for mark, packed, unpack, ending in _PACKERS:
            if file.peek().startswith(mark):
                raise ValueError(
                    f"{name}: looks like {packed}, not like text; unpack it with {unpack}, or let "
                    f"the name of a data file end in {ending}"
                )
        lines = file.peek().removesuffix(b"\n").removesuffix(b"\r")  # one alone may end in \r\n
        if b"\r" in lines and b"\n" not in lines:
            raise ValueError(
                f"{name}: lines that end in \\r alone are not told apart; convert them to \\n"
            )
        yield text


def _no_text(text: str) -> str:
    """What keeps a text from being text in UTF-8; "" where nothing does."""
    if "\0" in text:
        return "not UTF-8 but with bytes of 0, as UTF-16 has; convert the file with iconv"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00  # as surrogateescape has it
        return f"not UTF-8 (byte 0x{byte:02x}); convert the file, for example with iconv"
    return ""
