"""Lines and documents end only where they should, whatever a file is packed with."""

import codecs
import gzip
import os
import random

import pyarrow
import pytest

from tests.data.read.parse_test import file
from transformer_jax.data.prepare.tokenizer import train_tokenizer
from transformer_jax.data.read import open_file
from transformer_jax.data.read.open_file import read_documents, read_lines


def lines_of(path, **settings):
    return list(read_lines(path, **settings))


def documents_of(path, separator, **settings):
    return list(read_documents(path, separator, **settings))


def packed(data: bytes, ending: str) -> bytes:
    """The bytes of a file whose name ends so."""
    if ending == ".gz":
        return gzip.compress(data, mtime=0)
    return pyarrow.compress(data, codec="zstd", asbytes=True) if ending else data


def test_lines_that_end_in_a_carriage_return_alone_are_refused(tmp_path):
    (tmp_path / "f").write_bytes(b"one line\r\n")
    assert lines_of(tmp_path / "f") == ["one line"]
    (tmp_path / "f").write_bytes(b"word " * 9_000 + b"\rlast\r")
    for read in (lines_of, lambda path: documents_of(path, "\n")):
        with pytest.raises(ValueError, match=r"f: lines that end in \\r alone"):
            read(tmp_path / "f")


def test_a_file_that_is_not_a_regular_file_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "f")
    monkeypatch.delattr(open_file, "_unpacked")  # it would wait without end
    with pytest.raises(ValueError, match="f: cannot be read, as it is not a regular file"):
        lines_of(tmp_path / "f")


@pytest.mark.parametrize("name", ["f", "f.gz", "f.zst"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name):
    path, data = tmp_path / name, codecs.BOM_UTF8 + "pos a\n\ufeffneg b\n".encode()
    path.write_bytes(packed(data, path.suffix))
    assert lines_of(path) == ["pos a", "\ufeffneg b"]
    assert documents_of(path, "\n")[0] == "pos a"


def test_text_without_a_document(tmp_path):
    with pytest.raises(ValueError, match="f: the file holds nothing but white space"):
        documents_of(file(tmp_path, "\n \n\n"), "\n")


@pytest.mark.parametrize("name", ["f", "f.gz", "f.zst"])
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_lines_and_documents_are_whole_whatever_the_blocks(tmp_path, monkeypatch, name, size):
    """Whatever a block ends in: a character, a line, a separator; and nothing else divides."""
    draw, separators = random.Random(size), ("", "\n", "\n\n", "#", " #", "<|e|>")
    parts = ["ä", "b", "\n", "\r\n", "\n\r", "", " ", "\t", "#", "<|e|>", "\x0b", "\x1c", "\u2028"]
    text = "".join(draw.choices(parts, k=500)) + draw.choice("\nx")
    path = tmp_path / name
    path.write_bytes(packed(text.encode(), path.suffix))
    whole = lines_of(path), [documents_of(path, separator) for separator in separators]
    expected = text.replace("\r\n", "\n")
    assert whole[0] == expected.removesuffix("\n").split("\n")
    monkeypatch.setattr(open_file, "_BLOCK", size)
    assert lines_of(path) == whole[0]
    for separator, documents in zip(separators, whole[1], strict=True):
        assert documents_of(path, separator) == documents
        parts = expected.split(separator) if separator else [expected]
        assert documents == [part for part in parts if part and not part.isspace()]


@pytest.mark.parametrize("separator", ["\n", "#"])
def test_documents_lose_the_bad_lines_that_may_be_skipped(tmp_path, monkeypatch, caplog, separator):
    (tmp_path / "f").write_bytes("fein#\nsch\u00f6n#\ngut#\n\u00e4".encode("latin-1"))
    for block in (1, 2**20):
        monkeypatch.setattr(open_file, "_BLOCK", block)
        documents = documents_of(tmp_path / "f", separator, skip_bad=True)
        assert "".join(documents).replace("\n", "").replace("#", "") == "feingut"
        assert "2 lines of f are left out" in caplog.text and "f:2: not UTF-8" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("kind", ["words", "bytes", "bpe", "unigram"])
@pytest.mark.parametrize("separator", ["", "#"])
def test_a_document_too_long_is_divided_where_no_token_is(tmp_path, monkeypatch, kind, separator):
    draw = random.Random(0)
    for text in (
        "".join(draw.choices(["abc", "d", " ", " e", "\n", " \n"], k=400)).strip(),
        "".join(draw.choices(["abc", "d", "\n"], k=400)).strip(),
    ):
        path = file(tmp_path, f"a#{text}#b" if separator else text)
        monkeypatch.setattr(open_file, "LONGEST", 2**22)
        whole = documents_of(path, separator)
        monkeypatch.setattr(open_file, "LONGEST", 50)
        monkeypatch.setattr(open_file, "_BLOCK", 30)
        parts = documents_of(path, separator)
        assert len(parts) > len(whole) and max(map(len, parts)) <= 50
        assert "".join(parts) == "".join(whole)
        tokenizer = train_tokenizer(kind, whole, 30)
        ids = [[i for row in tokenizer.encode(texts) for i in row] for texts in (whole, parts)]
        if " " in text:  # in the others a part begins as a text does
            assert ids[0] == ids[1]


def test_a_line_without_an_end_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(open_file, "LONGEST", 10)
    monkeypatch.setattr(open_file, "_BLOCK", 7)
    text = "äöü" * 50
    parts = documents_of(file(tmp_path, text), "")
    assert "".join(parts) == text and max(map(len, parts)) <= 10
    (tmp_path / "f").write_bytes(b"abc\n" + text.encode() + b"\xff" * 9)
    with pytest.raises(ValueError, match="f:2: not UTF-8"):
        documents_of(tmp_path / "f", "")
