"""Readers of files, from a path to rows of columns: pairs, labelled texts, words with tags."""

import ast
import fnmatch
import itertools
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from transformer_jax.data.read.examples import listed, words
from transformer_jax.data.read.open_file import Skipped, read_lines

# The columns of CoNLL-U (universaldependencies.org/format.html), and those that can be tags.
_CONLLU = "id form lemma upos xpos feats head deprel deps misc".split()
_CONLLU_LABELS = "lemma upos xpos feats deprel".split()
_READ = 1024  # rows of Parquet that are read at a time
_END: Any = object()  # of the shorter of two files
_FASTTEXT = "__label__"  # what fastText's labels begin with (Joulin et al. 2017)

Row = tuple[Any, ...]
NUMBERS = ("features", "values")  # columns of numbers, what is given and what is asked for


def read_pair(source: Path, target: Path, *, skip_bad: bool) -> Iterator[Row]:
    """Parallel files: line i of one goes with line i of the other.

    Raises:
        ValueError: unequal numbers of lines, or as `read_lines`.
    """
    pairs = itertools.zip_longest(
        *(read_lines(path, skip_bad=skip_bad) for path in (source, target)), fillvalue=_END
    )
    skipped = Skipped(source, skip_bad)
    for number, pair in enumerate(pairs, start=1):
        if any(line is _END for line in pair):
            more = number + sum(1 for _ in pairs)
            lines = [number - 1 if line is _END else more for line in pair]
            raise ValueError(
                f"{source} has {lines[0]} lines and {target} has {lines[1]}: "
                "line i of one must go with line i of the other"
            )
        if None in pair:
            skipped.add(number, "not UTF-8, in one of the two files")
        else:
            yield pair
    skipped.tell()


def read_scan(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """A file of SCAN (Lake and Baroni 2018), lines "IN: jump twice OUT: I_JUMP I_JUMP".

    Yields source and target. Raises ValueError at any other line.
    """

    def parse(line: str) -> Row:
        command, separator, actions = line.removeprefix("IN: ").partition(" OUT: ")
        if not line.startswith("IN: ") or not separator or "OUT:" in actions:
            raise ValueError("expected 'IN: words OUT: ACTIONS'")
        return command, actions

    return parsed(path, parse, skip_bad)


def read_table(path: Path, text_column: str, label_column: str, *, skip_bad: bool) -> Iterator[Row]:
    """Two columns of a tab-separated file without quotes, a text and its label.

    Args:
        text_column, label_column: names in the header, which is the first line. Where both are
            decimal numbers, the file has no header, and they are places counted from 0.

    White space around a label is cut. A header that is read as a row is warned of at the end.

    Raises:
        ValueError: no such column, no row, one with more or fewer columns, or without a label.
    """
    first = next(read_lines(path, skip_bad=skip_bad)) or ""
    has_header = not (text_column.isdecimal() and label_column.isdecimal())
    cells = first.split("\t")
    names = cells if has_header else [str(place) for place in range(len(cells))]
    for key, column in (("text_feature", text_column), ("label_feature", label_column)):
        if names.count(column) != 1:
            expected = ", ".join(map(repr, names))
            raise ValueError(f"{path}: data.{key}={column!r}, but its columns are {expected}")
    text, label = names.index(text_column), names.index(label_column)

    def parse(line: str) -> Row:
        row = line.split("\t")
        if len(row) != len(names):
            raise ValueError(
                f"expected {len(names)} columns separated by tabs, as in line 1, got {len(row)}"
            )
        if not row[label].strip():
            raise ValueError(f"there is no label in column {label_column!r}")
        return row[text], row[label].strip()

    labels: Counter[str] = Counter()
    for row in parsed(path, parse, skip_bad, skip_first=has_header):
        labels[row[1]] += 1
        yield row
    if not labels:
        raise ValueError(f"{path}: there are no rows below the header")
    header = next(iter(labels))
    if not has_header and labels[header] == 1 < labels.total():
        logging.warning(
            "%s:1: the label %r is on no other line; if this line is a header, name its columns in "
            "data.text_feature and data.label_feature",
            path,
            header,
        )


def read_labelled(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """Lines "LABEL sentence", divided at the first blank; yields the sentence and its label.

    Raises:
        ValueError: a line without a label or a blank, a tab in the label, or one of fastText's
            labels, "__label__pos", behind its beginning.
    """

    def parse(line: str) -> Row:
        label, blank, text = line.partition(" ")
        if not label or not blank:
            raise ValueError("expected 'LABEL sentence'")
        if "\t" in label:
            raise ValueError(
                f"there is a tab in the label {label[:99]!r}; for columns that tabs separate, set "
                "data.source='tsv'"
            )
        if re.search(rf"[\s,]{_FASTTEXT}\w", line):
            raise ValueError(f"expected one label {_FASTTEXT}... at most, before the sentence")
        return text, label

    return parsed(path, parse, skip_bad)


def read_conll(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """Sentences of lines "word ... tag", as words and tags.

    The first row says how many columns there are, and that tabs separate them if it has one, else
    blanks. Blank lines end a sentence. Lines "-DOCSTART-" (Tjong Kim Sang and De Meulder 2003) are
    skipped, and where tabs separate those that begin with "# ".

    Raises:
        ValueError: a row of another shape, or without a word or a tag, a comment where blanks
            separate, the format of another CoNLL, or no sentence.
    """
    shape: list[Any] = []  # of the first row: whether there are tabs, and how many columns
    comments: list[str] = []

    def parse(line: str) -> Row | None:
        tabs, comment = "\t" in line, line.startswith("# ") and (not shape or shape[0])
        if comment or line.startswith("-DOCSTART-"):
            comments.extend([line] * comment)
            return None
        columns = line.split("\t") if tabs else words(line)
        if len(columns) < 2 or not columns[0].strip(" ") or not columns[-1].strip(" "):
            raise ValueError("expected a word and, in the last column, its tag")
        if not shape:
            numbered = len(columns) > 9 and columns[0][:2] in ("1", "1-")
            other = numbered or line.startswith("#begin")
            shape.extend([tabs, 0 if other else len(columns)])
            if other:
                raise ValueError("of another CoNLL's format; data.source='conllu' reads CoNLL-U")
            if comments and not tabs:
                raise ValueError(f"{comments[0]!r:.99} is no row, and a comment only beside tabs")
        if [tabs, len(columns)] != shape:
            separator = "tabs" if shape[0] else "blanks"
            raise ValueError(
                f"expected {shape[1]} columns between {separator}, as in the first row"
            )
        return columns[0].strip(" "), columns[-1].strip(" ")

    return _sentences(path, parse, skip_bad)


def read_conllu(path: Path, label_column: str, *, skip_bad: bool) -> Iterator[Row]:
    """Sentences of a CoNLL-U file (Nivre et al. 2020): words, and one of their columns as tags.

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

    def parse(line: str) -> Row | None:
        if line.startswith("#"):
            return None
        columns = line.split("\t")
        if len(columns) != len(_CONLLU) or not columns[0][:1].isdecimal():
            raise ValueError("expected the ten columns of CoNLL-U, separated by tabs, an id first")
        row = dict(zip(_CONLLU, columns, strict=True))
        if not row["form"] or not row[label_column]:
            raise ValueError(f"there is nothing in the column 'form' or {label_column!r}")
        return None if set("-.") & set(row["id"]) else (row["form"], row[label_column])

    return _sentences(path, parse, skip_bad)


def read_json(columns: Sequence[str], path: Path, *fields: str, skip_bad: bool) -> Iterator[Row]:
    """JSON lines: an object a line, of which the fields are read; blank lines are skipped.

    A line may be a dict of Python, too. The name of a field may be a pattern, as "summary*": where
    several fitting fields have a text, their values are a list. Dots reach into nested objects, as
    "translation.en" into {"translation": {"en": ...}}.

    Args:
        columns: what the fields are. "words" and "tags" are lists of one length, or are separated
            by blanks; "target" may be a list, of one text or more; "features" and "values" are
            numbers, or lists of them, of whatever depth; all others are texts.

    Raises:
        ValueError: a line that is no object, lacks a field, or holds something else there.
    """

    def parse(line: str) -> Row | None:
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except ValueError as error:
            value = _python(line)
            if value is None:
                raise ValueError(f"expected a JSON object ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object, but it is a {type(value).__name__}")
        return _row(value, columns, fields)

    return parsed(path, parse, skip_bad)


def read_parquet(columns: Sequence[str], path: Path, *fields: str, skip_bad: bool) -> Iterator[Row]:
    """The named columns of a Parquet file, as `read_json` has those of objects.

    Raises:
        ValueError: the file is none of Parquet, or not whole, it lacks a column, or a value is not
            what `columns` say.
    """
    with opened_parquet(path, fields) as file:
        rows = enumerate(parquet_rows(path, file, fields), start=1)
        yield from checked(path, rows, lambda row: _row(row, columns, fields), skip_bad)


def opened_parquet(path: Path, fields: Sequence[str]) -> Any:
    """PyArrow's view of a file that has these columns. Raises ValueError as `read_parquet`."""
    from pyarrow import ArrowException, parquet  # only here: most runs read no such file

    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError, ArrowException) as error:
        raise ValueError(f"{path}: not a whole Parquet file ({error})") from error
    names = file.schema_arrow.names
    counts = {name: names.count(name) or names.count(name.split(".")[0]) for name in fields}
    if wrong := [name for name, count in counts.items() if count != 1]:
        file.close()
        raise ValueError(f"{path}: expected one {wrong[0]!r} among its columns {', '.join(names)}")
    return file


def parquet_rows(path: Path, file: Any, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of what `opened_parquet` returns. Raises ValueError where it is not whole."""
    from pyarrow import ArrowException

    try:
        for batch in file.iter_batches(_READ, columns=list(fields)):
            yield from batch.to_pylist()
    # What PyArrow raises of a file, and Python of texts in it that are no UTF-8
    except (OSError, ValueError, ArrowException) as error:
        raise ValueError(f"{path}: not a whole Parquet file ({error})") from error


def _python(line: str) -> Any:
    """What a line of Python stands for that looks like a dict; None: it does not, or nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "\8", which is no escape and stays as it is
        try:
            return ast.literal_eval(line) if line.startswith("{") else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


def _row(record: dict[str, Any], columns: Sequence[str], fields: Sequence[str]) -> Row:
    """The fields of an object as the columns want them."""
    row = tuple(_cell(record, *pair) for pair in zip(columns, fields, strict=True))
    if "tags" in columns and len(row[0]) != len(row[1]):
        raise ValueError(f"{len(row[0])} words, but {len(row[1])} tags")
    return row


def _cell(row: dict[str, Any], column: str, name: str) -> Any:
    """A field as a column wants it."""
    if column in NUMBERS:
        value = value_of(row, name)
        _check_numbers(value, name)
        return value if isinstance(value, list) else [value]
    value = _field(row, name)
    value = words(value) if column in ("words", "tags") else value
    if column in ("words", "tags", "label") and "" in listed(value):
        raise ValueError(f"the field {name!r} has an empty text in place of a word or label")
    if column in ("words", "tags"):
        return value
    if isinstance(value, list) and column != "target":
        raise ValueError(f"the field {name!r} is a list, not a text")
    if value == []:
        raise ValueError(f"the field {name!r} is an empty list: expected a text or several")
    if isinstance(value, list):  # of references, of which blank ones are none
        return [text for text in value if text.strip()] or value[0]
    return value


def _field(row: dict[str, Any], name: str) -> str | list[str]:
    """A text, a number as text, or a list of them."""
    if name not in row and (names := sorted(fnmatch.filter(row, name))):
        values = [_field(row, one) for one in names]
        texts = [value for value in values if isinstance(value, str)]
        return texts if len(texts) > 1 else values[0]
    value = value_of(row, name)
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, list):
        raise ValueError(f"the field {name!r} is {value!r:.50}, not a text")
    if others := [item for item in value if not isinstance(item, str | int)]:
        raise ValueError(f"the field {name!r} is a list with {others[0]!r:.50}, which is no text")
    return [whole(str(item)) for item in value]


def value_of(row: dict[str, Any], name: str) -> Any:
    """A field of an object, or of those in it. Raises ValueError where there is none."""
    inner = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(inner, dict) or part not in inner:
            raise ValueError(f"there is no field {name!r}; its fields are {', '.join(row)}")
        inner = inner[part]
    return inner


def _check_numbers(value: Any, name: str) -> None:
    """Raises ValueError where a value is neither a finite number nor a list of such."""
    if isinstance(value, list):
        for item in value:
            _check_numbers(item, name)
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the field {name!r} holds {value!r:.50}, which is no finite number")


def whole(text: str) -> str:
    """The text. Raises ValueError where it has half a character, as "\\ud83d" alone in JSON is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ValueError(f"{half!r} is half a character, a surrogate without its other") from None
    return text


def _sentences(path: Path, parse: Callable[[str], Row | None], skip_bad: bool) -> Iterator[Row]:
    """Sentences that end at blank lines; `parse` turns a line into a word and its tag, or None."""
    sentence, count = [], 0

    def word(line: str) -> tuple[Row | None]:
        return (parse(line) if line.strip(" \t") else (),)

    for (row,) in itertools.chain(parsed(path, word, skip_bad), [((),)]):  # the last line is blank
        if row:
            sentence.append(row)
        elif row == () and sentence:
            yield tuple(map(list, zip(*sentence, strict=True)))
            sentence, count = [], count + 1
    if not count:
        raise ValueError(f"{path}: the file holds no sentence")


def parsed(
    path: Path, parse: Callable[[str], Any], skip_bad: bool, *, skip_first: bool = False
) -> Iterator[Any]:
    """What `parse` makes of each line, but None; a ValueError of its is told with the line."""

    def row(line: str | None) -> Any:
        if line is None:
            raise ValueError("not UTF-8")
        try:
            return parse(line)
        except ValueError as error:
            raise ValueError(f"{error}; got {line[:99]!r}") from None

    lines = enumerate(read_lines(path, skip_bad=skip_bad), start=1)
    return checked(path, itertools.islice(lines, skip_first, None), row, skip_bad)


def checked(
    path: Path, numbered: Iterable[tuple[int, Any]], parse: Callable[[Any], Any], skip_bad: bool
) -> Iterator[Any]:
    """What `parse` makes of each item, but None; a ValueError of its is told with the number."""
    skipped = Skipped(path, skip_bad)
    for number, item in numbered:
        try:
            row = parse(item)
        except ValueError as error:
            skipped.add(number, str(error))
            continue
        if row is not None:
            yield row
    skipped.tell()
