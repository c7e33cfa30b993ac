"""Readers of text files, from a path to columns: parallel and plain text, labels, tags."""

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

from absl import logging

from transformer_jax.data.examples import Examples
from transformer_jax.devices import machine

_LONG = 1_000_000  # bytes; a line of more is hardly meant as one
# The columns of CoNLL-U (universaldependencies.org/format.html), and those that can be tags.
_CONLLU = "id form lemma upos xpos feats head deprel deps misc".split()
_CONLLU_LABELS = "lemma upos xpos feats deprel".split()


def read_pair(source: Path, target: Path) -> Examples:
    """Parallel files as "source" and "target": line i of one goes with line i of the other.

    Raises:
        ValueError: unequal numbers of lines.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: "
            "line i of one must go with line i of the other"
        )
    return {"source": sources, "target": targets}


def read_scan(path: Path) -> Examples:
    """A file of SCAN (Lake and Baroni 2018), lines "IN: jump twice OUT: I_JUMP I_JUMP".

    Returns "source" and "target". Raises ValueError at any other line.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        command, separator, actions = line.removeprefix("IN: ").partition(" OUT: ")
        if not line.startswith("IN: ") or not separator:
            raise ValueError(
                f"{path}:{number}: expected 'IN: words OUT: ACTIONS', got {line[:99]!r}"
            )
        pairs.append((command, actions))
    sources, targets = map(list, zip(*pairs, strict=True))
    return {"source": sources, "target": targets}


def read_documents(path: Path, separator: str) -> Examples:
    r"""Plain text as "text": documents that `separator` divides ("": the file is one document).

    Documents do not include the separators, and those of white space alone are left out. Lines end
    at "\n" alone; a "\r" before it is cut.

    Raises:
        ValueError: there is no document.
    """
    data = _read_bytes(path)
    text = "\n".join(decode_lines(data, str(path))) + "\n" * data.endswith(b"\n")
    documents = text.split(separator) if separator else [text]
    documents = [document for document in documents if document and not document.isspace()]
    if not documents:
        raise ValueError(f"{path}: the file holds nothing but white space and separators")
    return {"text": documents}


def read_table(path: Path, text_column: str, label_column: str) -> Examples:
    """Two columns of a tab-separated file without quotes, as "text" and "label".

    Args:
        text_column, label_column: names in the header, which is the first line. Where both are
            decimal numbers, the file has no header, and they are places counted from 0.

    White space around a label is cut.

    Raises:
        ValueError: no such column, a row with more or fewer columns, or a row without a label.
    """
    rows = [line.split("\t") for line in read_lines(path)]
    has_header = not (text_column.isdecimal() and label_column.isdecimal())
    names = rows.pop(0) if has_header else [str(place) for place in range(len(rows[0]))]
    for key, column in (("text_feature", text_column), ("label_feature", label_column)):
        if column not in names:
            expected = ", ".join(map(repr, names))
            raise ValueError(f"{path}: data.{key}={column!r}, but its columns are {expected}")
    if not rows:
        raise ValueError(f"{path}: there are no rows below the header")
    text, label = names.index(text_column), names.index(label_column)
    for number, row in enumerate(rows, start=1 + has_header):
        if len(row) != len(names):
            raise ValueError(
                f"{path}:{number}: expected {len(names)} columns separated by tabs, as in line 1, "
                f"got {len(row)}"
            )
        if not row[label].strip():
            raise ValueError(f"{path}:{number}: there is no label in column {label_column!r}")
    labels = [row[label].strip() for row in rows]
    if not has_header and len(labels) > 1 and labels[0] not in labels[1:]:
        logging.warning(
            "%s:1: the label %r is on no other line; if this line is a header, name its columns in "
            "data.text_feature and data.label_feature",
            path,
            labels[0],
        )
    return {"text": [row[text] for row in rows], "label": labels}


def read_labelled(path: Path) -> Examples:
    """Lines "LABEL sentence", divided at the first blank, as "text" and "label".

    Raises:
        ValueError: a line without a label or a blank, or a tab in the label.
    """
    texts, labels = [], []
    for number, line in enumerate(read_lines(path), start=1):
        label, blank, text = line.partition(" ")
        if not label or not blank:
            raise ValueError(f"{path}:{number}: expected 'LABEL sentence', got {line[:99]!r}")
        if "\t" in label:
            raise ValueError(
                f"{path}:{number}: there is a tab in the label {label[:99]!r}; for columns that "
                "tabs separate, set data.source='tsv'"
            )
        texts.append(text)
        labels.append(label)
    return {"text": texts, "label": labels}


def read_conll(path: Path) -> Examples:
    """Sentences of lines "word ... tag" as "words" and "tags"; tabs or blanks separate the columns.

    Blank lines end a sentence. Lines "-DOCSTART-" (Tjong Kim Sang and De Meulder 2003) are skipped.

    Raises:
        ValueError: a line with a single column, or no sentence.
    """

    def parse(line: str) -> tuple[str, str] | None:
        if line.startswith("-DOCSTART-"):
            return None
        columns = re.split("[ \t]+", line.rstrip(" \t"))
        if len(columns) < 2 or not columns[0]:
            raise ValueError("expected a word and, in the last column, its tag")
        return columns[0], columns[-1]

    return _read_sentences(path, parse)


def read_conllu(path: Path, label_column: str) -> Examples:
    """Sentences of a CoNLL-U file (Nivre et al. 2020): "words", and one of their columns as "tags".

    Comments, multi-word tokens (ids such as "1-2") and empty nodes ("1.1") are skipped.

    Args:
        label_column: "lemma", "upos", "xpos", "feats" or "deprel".

    Raises:
        ValueError: another label_column, a line without ten columns, or no sentence.
    """
    if label_column not in _CONLLU_LABELS:
        raise ValueError(
            f"data.label_feature={label_column!r}: the columns of CoNLL-U that can be tags are "
            f"{', '.join(_CONLLU_LABELS)}"
        )

    def parse(line: str) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        columns = line.split("\t")
        if len(columns) != len(_CONLLU):
            raise ValueError("expected the ten columns of CoNLL-U, separated by tabs")
        row = dict(zip(_CONLLU, columns, strict=True))
        return None if set("-.") & set(row["id"]) else (row["form"], row[label_column])

    return _read_sentences(path, parse)


def _read_sentences(path: Path, parse: Callable[[str], tuple[str, str] | None]) -> Examples:
    """Sentences that end at blank lines; `parse` turns a line into a word and its tag, or None."""
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip(" \t"):
            sentences.append([])
            continue
        try:
            word = parse(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}; got {line[:99]!r}") from None
        if word:
            sentences[-1].append(word)
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise ValueError(f"{path}: the file holds no sentence")
    return {
        "words": [[word for word, _ in sentence] for sentence in sentences],
        "tags": [[tag for _, tag in sentence] for sentence in sentences],
    }


def read_lines(path: Path) -> list[str]:
    r"""The lines of a UTF-8 file, plain or .gz. They end at "\n" alone; a "\r" before it is cut.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read or decoded, or is empty.
    """
    return decode_lines(_read_bytes(path), str(path))


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""The lines of UTF-8 text. They end at "\n" alone; a "\r" before it is cut.

    A byte-order mark at the beginning is cut too. A warning tells of lines beyond all reason.

    Raises:
        ValueError: a line that is not UTF-8; the message gives its number, and `name` for the text.
            Or the text is packed by gzip.
    """
    if data.startswith(b"\x1f\x8b"):
        raise ValueError(
            f"{name}: looks like gzip, not like text; unpack it with gunzip, or let the name of a "
            "data file end in .gz"
        )
    data = data.removeprefix(codecs.BOM_UTF8)
    lines, long = [], []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=1):
        if len(line) > _LONG:
            long.append((number, len(line) / 1e6))
        try:
            lines.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x}); convert the "
                "file, for example with iconv"
            ) from error
    if long:
        number, size = long[0]
        more = f", and {len(long) - 1} more such lines" if len(long) > 1 else ""
        logging.warning(
            "%s:%d: a line of %.0f MB%s; reading it takes much time and memory, so break it up if "
            "it is not meant as one line",
            name,
            number,
            size,
            more,
        )
    return lines


def _check_size(path: Path) -> None:
    """Checks that a file can be read: it is there as bytes, and then as lines of bytes and of text.

    Raises:
        ValueError: memory cannot hold it. Where little of it is free, a warning tells.
    """
    needed = 3 * os.path.getsize(path) if os.path.isfile(path) else 0
    whole, free = machine.memory()
    message = (
        f"{path}: reading this file takes at least {machine.size(needed)} of memory, and this "
        f"machine has {machine.size(whole)}, {machine.size(free)} of it free: train on a part of it"
    )
    if needed > whole:
        raise ValueError(message)
    if needed > free:
        logging.warning("%s", message)


def _read_bytes(path: Path) -> bytes:
    _check_size(path)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for without end
            raise ValueError(f"{path}: cannot be read, as it is not a regular file")
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not data.removeprefix(codecs.BOM_UTF8):
        raise ValueError(f"{path}: the file is empty")
    return data
