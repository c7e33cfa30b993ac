"""Files as they are drawn: of every format rows, and such as are none.

What a row is worth is known when it is written: what reads a file is compared with that.
"""

import csv
import io
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet as parquet
from hypothesis import strategies as st
from PIL import Image

from transformer_jax.data.read.features import KEYS
from transformer_jax.data.read.sources import BOXED, LABELLED, PAIRS, PICTURES, TAGGED, TEXTS

# Of lines: characters that others take for their ends or for blanks, and some of all kinds
_WORD = st.text("abÄß日\u00a0\u2028\x85\u200b😀é,.'-", min_size=1, max_size=4)
_TEXT = st.lists(_WORD, min_size=1, max_size=3).map(" ".join).filter(str.strip)
_LABEL = st.sampled_from(["yes", "no", "é", "B-x"])
_NOT_UTF8 = [b"\xff\xfe", b"a\x00b", b"\xe4hnlich", b"\xed\xa0\x80", b"\xf5"]


class Row(NamedTuple):
    """What a row is written as, and how many examples it is; None: it is refused."""

    written: Any
    examples: int | None


class Format(NamedTuple):
    """A format of the files of a source.

    write: rows -> the content of a split's files. good, bad: of rows. settings: of the config, in
    addition to the source. names: of a split's files, as many as there may be.
    """

    source: str
    columns: tuple[str, ...]
    write: Callable[[list[Any]], tuple[bytes, ...]]
    good: st.SearchStrategy[Row]
    bad: st.SearchStrategy[Row]
    settings: dict[str, Any] = {}
    names: tuple[str, ...] = ("{}",)

    def __repr__(self) -> str:
        return f"<{self.source}: {', '.join(self.columns)}>"


def _lines(lines: list[Any]) -> tuple[bytes, ...]:
    data = (line.encode() if isinstance(line, str) else line for line in lines)
    return (b"".join(line + b"\n" for line in data),)


def _pairs(rows: list[Any]) -> tuple[bytes, ...]:
    return tuple(_lines(list(side))[0] for side in zip(*rows, strict=True))


def _table(rows: list[Any]) -> tuple[bytes, ...]:
    return _lines(["id\ttext\tlabel", *rows])


def _squad(entries: list[Any]) -> tuple[bytes, ...]:
    data = {"data": [{"paragraphs": [{"context": "c d", "qas": entries}]}]}
    return (json.dumps(data).encode(),)


def _questions(rows: list[Any]) -> tuple[bytes, ...]:
    file = io.StringIO()
    header = "question cor_section answer1 answer4".split()
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return (file.getvalue().encode(),)


def _parquet(rows: list[Any]) -> tuple[bytes, ...]:
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=3)
    return (file.getvalue(),)


def _rows(strategy: st.SearchStrategy[Any], *without_example: Any) -> st.SearchStrategy[Row]:
    rows = strategy.map(lambda written: Row(written, 1))
    others = [Row(written, 0) for written in without_example]
    return rows | st.sampled_from(others) if others else rows


def _bad(*written: Any) -> st.SearchStrategy[Row]:
    return st.sampled_from([Row(one, None) for one in written])


def _cells(by: str, *cells: Any) -> st.SearchStrategy[str]:
    strategies = [cell if isinstance(cell, st.SearchStrategy) else st.just(cell) for cell in cells]
    return st.tuples(*strategies).map(by.join)


def _sentences(by: str, *cells: Any) -> st.SearchStrategy[str]:
    """Lines of words, and the blank one behind them."""
    return st.lists(_cells(by, *cells), min_size=1, max_size=4).map(
        lambda rows: "\n".join([*rows, ""])
    )


def _of_objects(columns: tuple[str, ...]) -> list[Format]:
    """The formats of objects with fields that are called as the columns."""
    good = st.fixed_dictionaries({name: _TEXT for name in columns})
    if columns == TAGGED:
        words = st.lists(_WORD, min_size=1, max_size=3)
        good = words.map(lambda words: {"words": words, "tags": ["X", "é", "O"][: len(words)]})
    first, last = columns[0], columns[-1]
    whole = {name: ["a"] if columns == TAGGED else "a" for name in columns}
    wrong: list[Any] = [None, 1.5, {"a": 1}, [["a"]], ["a", None], "\ud83d"]
    bad = [{}, *(whole | {name: value} for name in columns for value in wrong)]
    bad += {
        PAIRS: [whole | {first: ["a"]}, whole | {last: []}],
        TEXTS: [whole | {first: ["a"]}],
        LABELLED: [whole | {first: ["a"]}, whole | {last: ["a"]}, whole | {last: ""}],
        TAGGED: [whole | {first: ["a", "b"]}, whole | {first: [""]}, whole | {last: [""]}],
    }[columns]
    more = good.map(lambda row: row | {"more": {"a": [1, None]}})
    texts = good.map(json.dumps) | more.map(lambda row: json.dumps(row, ensure_ascii=False))
    others = ["[1]", "{'text'", "null", '"a"', "1", "{", "x", *_NOT_UTF8, *map(json.dumps, bad)]
    missing = [row for row in bad if None in row.values()]  # a column of Parquet has one type
    settings = {f"data.{KEYS[name]}": name for name in columns}
    return [
        Format(
            "json", columns, _lines, _rows(texts | more.map(repr), "", " "), _bad(*others), settings
        ),
        Format("parquet", columns, _parquet, _rows(good), _bad(*missing), settings),
    ]


def _coco(rows: list[Any]) -> tuple[bytes, ...]:
    boxes = [(n, box) for n, (_, objects) in enumerate(rows) for box in objects]
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(len(rows))],
        "annotations": [{"image_id": n, "category_id": 7, "bbox": box} for n, box in boxes],
        "categories": [{"id": 7, "name": "é"}],
    }
    return (json.dumps(content).encode(), *(picture for picture, _ in rows))


def _image(format: str, width: int, height: int, **options: Any) -> bytes:
    file, (kind, mode) = io.BytesIO(), format.split()
    Image.new(mode, (width, height)).save(file, kind, **options)
    return file.getvalue()


_KINDS = "PNG 1,PNG L,PNG P,PNG LA,PNG RGBA,PNG I;16,JPEG L,JPEG CMYK,GIF P,TIFF I,BMP RGB,WEBP RGB"
_SIDE = st.integers(1, 40)
_PICTURE = st.builds(_image, st.sampled_from(_KINDS.split(",")), _SIDE, _SIDE)
_FRAMES = {"save_all": True, "append_images": [Image.new("P", (9, 9), 1)]}
_NO_PICTURE = st.sampled_from(
    [b"", b"x", _image("TIFF F", 9, 9), _image("GIF P", 9, 9, **_FRAMES)]
    + [b"P5 0 4 255\n", b"P5 4 4 255\nabc", b"P5 99999 99999 255\n"]
) | _PICTURE.map(lambda data: data[: len(data) // 2])
_BOXES = st.lists(st.lists(st.floats(-9, 50), min_size=4, max_size=4), max_size=3)


def _pictured(source: str, columns: tuple[str, ...], write: Any, label: Any, **more: Any) -> Format:
    """A format whose rows are pictures with what belongs to each."""
    bad = st.tuples(_NO_PICTURE, label).map(lambda row: Row(row, None))
    return Format(source, columns, write, _rows(st.tuples(_PICTURE, label)), bad, **more)


_ASKED = {"question": _TEXT, "answers": st.just([{"text": "a"}])}
_NO_ANSWER = {"question": "q", "answers": []}  # of SQuAD 2.0, which is left out
_REST = "\t_" * 6  # the columns of CoNLL-U behind the tag
_STORY = b'section,text\n1,"a\nb"\n2,c\n'
_TAGS = st.sampled_from([f"X{_REST}", f"é{_REST}"])
FORMATS = [
    Format("text", TEXTS, _lines, _rows(_TEXT, " \t"), _bad(*_NOT_UTF8)),
    Format(
        "text", PAIRS, _pairs, _rows(st.tuples(_TEXT, _TEXT)),
        _bad(*((bad, "a") for bad in _NOT_UTF8), *(("a", bad) for bad in _NOT_UTF8)),
        names=("{}.en", "{}.de"),
    ),
    Format(
        "scan", PAIRS, _lines, _rows(_cells("", "IN: ", _TEXT, " OUT: ", _TEXT)),
        _bad("", "IN: a", "a OUT: b", "in: a OUT: b", "IN: a OUT: b OUT: c", *_NOT_UTF8),
    ),
    Format(
        "tsv", LABELLED, _table, _rows(_cells("\t", "7", _TEXT, _LABEL | st.just(" no "))),
        _bad("", "a", "a\tb", "a\tb\tc\td", "a\tb\t", "a\tb\t \u00a0", "\t\t\t", *_NOT_UTF8),
        {"data.text_feature": "text", "data.label_feature": "label"},
    ),
    Format(
        "labelled", LABELLED, _lines, _rows(_cells(" ", _LABEL, _TEXT)),
        _bad("1", "", " film", "1\tfilm", "1\u00a0film", "neg\tbad film", *_NOT_UTF8)
        | _bad("__label__a __label__b x", "__label__a x __label__b", "__label__a,__label__b x"),
    ),
    Format(
        "conll", TAGGED, _lines, _rows(_sentences("\t", _WORD, "x", _LABEL), "# a\tb"),
        _bad("word", "word\t", "\tO", "a\tO", "a\tx\ty\tO", "a x O", " \tx\tO", *_NOT_UTF8),
    ),
    Format(
        "conll", TAGGED, _lines, _rows(_sentences(" ", _WORD, "x", _LABEL), "-DOCSTART- -X- O"),
        _bad("word", "a O", "a x y O", "a\tx\tO", "a b\tx\tO", "# O", *_NOT_UTF8),
    ),
    Format(
        "conllu", TAGGED, _lines,
        _rows(_sentences("\t", "1", _WORD, "_", _TAGS), "# a", f"1-2\ta\t_\tX{_REST}"),
        _bad(f"1\ta\t_\t{_REST}", f"1\t\t_\tX{_REST}", f"1\ta\tX{_REST}", f"1\ta\t_\tX\t_{_REST}")
        | _bad("2 b", *_NOT_UTF8),
        {"data.label_feature": "upos"},
    ),
    Format(
        "babi", PAIRS, _lines, _rows(st.just("2 who?\tAnn\t1"), "1 Ann slept.", "7 a"),
        _bad("", "x", "1", "a b", "1\ta", "-1 a", "1.5 b", "2 q\ta\t1\t3 s", *_NOT_UTF8),
    ),
    Format(
        "squad", PAIRS, _squad, _rows(st.fixed_dictionaries(_ASKED), _NO_ANSWER),
        _bad({}, {"question": "q"}, {"answers": [{"text": "a"}]}, _NO_ANSWER | {"answers": [1]}),
    ),
    Format(
        "fairytaleqa", PAIRS, lambda rows: (*_questions(rows), _STORY),
        _rows(st.tuples(_TEXT, st.sampled_from(["1", "1, 2"]), _TEXT, st.just(""))),
        _bad(("q", "3", "a", ""), ("q", "1", " ", "")),
        names=("questions/{}/a-questions.csv", "section-stories/{}/a-story.csv"),
    ),
    *itertools.chain.from_iterable(map(_of_objects, (PAIRS, TEXTS, LABELLED, TAGGED))),
    _pictured(
        "folder", PICTURES, lambda rows: tuple(picture for picture, _ in rows), st.none(),
        names=tuple(f"{{}}/{'ab'[n % 2]}/{n}" for n in range(9)),
    ),
    _pictured(
        "parquet", PICTURES, lambda rows: _parquet([{"a": a, "b": b} for a, b in rows]), _LABEL,
        settings={"data.text_feature": "a", "data.label_feature": "b"},
    ),
    _pictured(
        "coco", BOXED, _coco, _BOXES, names=("{}.json", *(f"{{}}/{n}.png" for n in range(9)))
    ),
]  # fmt: skip
