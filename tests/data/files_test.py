"""Readers of text files: lines end only where they should, mistakes name file and line."""

import codecs
import gzip
import os
from collections import Counter
from pathlib import Path

import pytest

from transformer_jax.data import files
from transformer_jax.devices import machine


def file(folder: Path, text: str) -> Path:
    (folder / "f").write_bytes(text.encode())
    return folder / "f"


def real_data(*path: str) -> Path:
    """A file in the folder of real data; without it the test is skipped."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if folder is None or not Path(folder, *path).exists():
        pytest.skip(f"TRANSFORMER_JAX_DATA names no folder with {path[0]}")
    return Path(folder, *path)


def test_only_one_carriage_return_is_cut_and_only_before_the_end_of_line(tmp_path):
    (tmp_path / "f").write_bytes(b"a\rb\r\r\n\x0c\n")
    assert files.read_lines(tmp_path / "f") == ["a\rb\r", "\x0c"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty", b"", "empty: the file is empty"),
        ("empty.gz", gzip.compress(b"", mtime=0), "the file is empty"),
        ("latin", "fein\nschön\n".encode("latin-1"), "latin:2: not UTF-8 .byte 0xf6"),
        ("cut.gz", gzip.compress(b"hello\n" * 99, mtime=0)[:-9], "cut.gz: not a whole gzip file"),
        ("fake.gz", b"plain text\n", "fake.gz: not a whole gzip file"),
        ("packed", gzip.compress(b"text\n", mtime=0), "packed: looks like gzip"),
        ("mark", codecs.BOM_UTF8, "mark: the file is empty"),
    ],
)
def test_unreadable_contents(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        files.read_lines(tmp_path / name)


def test_folder_and_forbidden_file(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        files.read_lines(tmp_path)
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0)
    if not os.access(tmp_path / "f", os.R_OK):  # root may read everything
        with pytest.raises(ValueError, match="f: cannot be read .Permission"):
            files.read_lines(tmp_path / "f")


def test_a_file_that_is_not_a_regular_file_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "f")
    monkeypatch.delattr(Path, "read_bytes")  # it would wait without end
    with pytest.raises(ValueError, match="f: cannot be read, as it is not a regular file"):
        files.read_lines(tmp_path / "f")


@pytest.mark.parametrize("name", ["f", "f.gz"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, name):
    data = codecs.BOM_UTF8 + "pos a\n\ufeffneg b\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name == "f.gz" else data)
    assert files.read_labelled(tmp_path / name)["label"] == ["pos", "\ufeffneg"]
    assert files.read_documents(tmp_path / name, "\n")["text"][0] == "pos a"


def test_lines_beyond_all_reason_are_told_of(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(files, "_LONG", 3)
    assert files.read_lines(file(tmp_path, "abc\nabcd\n")) == ["abc", "abcd"]
    (message,) = caplog.messages
    assert "f:2: a line of" in message and "more" not in message
    caplog.clear()
    files.read_lines(file(tmp_path, "abcd\n\n" * 3))
    (message,) = caplog.messages
    assert "f:1: a line of" in message and "and 2 more such lines" in message


@pytest.mark.parametrize(
    ("text", "separator", "documents"),
    [
        ("a b\nc\n", "", ["a b\nc\n"]),
        ("a b\nc", "", ["a b\nc"]),
        ("a b\nc\n", "\n", ["a b", "c"]),
        ("a\r\n\r\n \t\nb\n", "\n", ["a", "b"]),
        ("a\nb\n\nc\n\n\n\nd", "\n\n", ["a\nb", "c", "d"]),
        ("x<|e|>\ny<|e|>\n", "<|e|>", ["x", "\ny"]),
        ("a\x0b\x0c\x1c\u0085\u2028b\rc\n", "\n", ["a\x0b\x0c\x1c\u0085\u2028b\rc"]),
    ],
)
def test_documents_end_at_the_separator_alone(tmp_path, text, separator, documents):
    assert files.read_documents(file(tmp_path, text), separator) == {"text": documents}


def test_documents_are_what_stands_between_separators(tmp_path):
    text = "one\ntwo\u00a0x\n\nthree\n"
    for separator in ("\n", "\n\n", "w", "zzz"):
        documents = files.read_documents(file(tmp_path, text), separator)["text"]
        assert "".join(documents) == text.replace(separator, "")


def test_text_without_a_document(tmp_path):
    with pytest.raises(ValueError, match="f: the file holds nothing but white space"):
        files.read_documents(file(tmp_path, "\n \n\n"), "\n")


TABLE = "id\tsentence\tlabel\n7\ta \"b\tyes\n8\tc'\u2028\u00a0 d\tno\n"


def test_table_with_a_header_has_no_quotes(tmp_path):
    expected = {"text": ['a "b', "c'\u2028\u00a0 d"], "label": ["yes", "no"]}
    assert files.read_table(file(tmp_path, TABLE), "sentence", "label") == expected


def test_table_without_header_has_numbered_columns(tmp_path):
    path = file(tmp_path, "gj04\t1\t\tThe sailors rode .\ngj04\t0\t*\tSailors the .\n")
    expected = {"text": ["The sailors rode .", "Sailors the ."], "label": ["1", "0"]}
    assert files.read_table(path, "3", "1") == expected


def test_a_header_that_is_read_as_a_row_is_warned_of(tmp_path, caplog):
    rows = "pos\ta\nneg\tb\npos\tc\nneg\td\n"
    files.read_table(file(tmp_path, rows), "1", "0")
    assert not caplog.messages
    assert files.read_table(file(tmp_path, f"label\ttext\n{rows}"), "1", "0")["label"][0] == "label"
    (message,) = caplog.messages
    assert "f:1: the label 'label' is on no other line" in message


def test_white_space_around_a_label_of_a_table_is_cut(tmp_path):
    path = file(tmp_path, "pos\ta \npos \t b\n\u00a0pos\tc\n")
    found = files.read_table(path, "1", "0")
    assert found == {"text": ["a ", " b", "c"], "label": ["pos"] * 3}


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TABLE, ("text", "label"), "data.text_feature='text', but its columns are 'id', 'sent"),
        (TABLE, ("sentence", "2"), "data.label_feature='2', but its columns are 'id', 'sent"),
        (TABLE, ("0", "3"), "data.label_feature='3', but its columns are '0', '1', '2'"),
        (TABLE + "9\te\n", ("sentence", "label"), "f:4: expected 3 columns .* got 2"),
        (TABLE + "9\te\t\n", ("sentence", "label"), "f:4: there is no label in column 'label'"),
        (TABLE + "9\te\t \n", ("sentence", "label"), "f:4: there is no label in column 'label'"),
        ("a\tb\n\n", ("0", "1"), "f:2: expected 2 columns .* got 1"),
        ("a\tb\n", ("a", "b"), "f: there are no rows below the header"),
    ],
)
def test_table_that_is_wrong(tmp_path, text, columns, message):
    with pytest.raises(ValueError, match=message):
        files.read_table(file(tmp_path, text), *columns)


def test_labelled_lines_are_divided_at_the_first_blank(tmp_path):
    path = file(tmp_path, "1 a good\u00a0film .\n0\u00a0x  bad\n")
    expected = {"text": ["a good\u00a0film .", " bad"], "label": ["1", "0\u00a0x"]}
    assert files.read_labelled(path) == expected


@pytest.mark.parametrize("line", ["1", "", " a film", "1\tfilm", "1\u00a0film"])
def test_labelled_line_without_label(tmp_path, line):
    with pytest.raises(ValueError, match="f:2: expected 'LABEL sentence'"):
        files.read_labelled(file(tmp_path, f"1 a\n{line}\n"))


def test_a_tab_in_a_label_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"f:2: there is a tab in the label 'neg\\tbad'; .*'tsv'"):
        files.read_labelled(file(tmp_path, "pos good film\nneg\tbad film\n"))


def test_conll_takes_the_first_and_the_last_column(tmp_path):
    text = (
        "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\t\n"
        "#tag\tO \r\n\ufeffa\u00a0b\tB-x\n \n\n-DOCSTART-\tO\n\nlast  \t O"
    )
    assert files.read_conll(file(tmp_path, text)) == {
        "words": [["EU", "rejects"], ["#tag", "\ufeffa\u00a0b"], ["last"]],
        "tags": [["B-ORG", "O"], ["O", "B-x"], ["O"]],
    }


@pytest.mark.parametrize("line", ["word", "word\t", "\tO"])
def test_conll_line_without_word_or_tag(tmp_path, line):
    with pytest.raises(ValueError, match="f:3: expected a word and, in the last column, its tag"):
        files.read_conll(file(tmp_path, f"a\tO\n\n{line}\n"))


def test_conll_without_sentence(tmp_path):
    with pytest.raises(ValueError, match="f: the file holds no sentence"):
        files.read_conll(file(tmp_path, "-DOCSTART- O\n\n"))


CONLLU = """\
# text = Vámonos # now
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV1\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP1\tCase=Acc\t1\tobj\t_\t_
2.1\tya\tya\tADV\tR\t_\t_\t_\t1:advmod\t_

# newpar
1\t#\t#\tSYM\tS\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize(
    ("column", "tags"),
    [
        ("lemma", [["ir", "nosotros"], ["#"]]),
        ("upos", [["VERB", "PRON"], ["SYM"]]),
        ("xpos", [["V1", "P1"], ["S"]]),
        ("feats", [["Mood=Imp", "Case=Acc"], ["_"]]),
        ("deprel", [["root", "obj"], ["root"]]),
    ],
)
def test_conllu_has_words_alone(tmp_path, column, tags):
    found = files.read_conllu(file(tmp_path, CONLLU), column)
    assert found == {"words": [["Vamos", "nos"], ["#"]], "tags": tags}


def test_conllu_that_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="data.label_feature='antecedent'.* lemma, upos, xpos"):
        files.read_conllu(file(tmp_path, CONLLU), "antecedent")
    with pytest.raises(ValueError, match="f:10: expected the ten columns .*got '2 b'"):
        files.read_conllu(file(tmp_path, CONLLU + "\n2 b\n"), "upos")


# Real data: the published sizes.


@pytest.mark.parametrize(
    ("name", "sentences", "classes"),
    [
        ("stsa.fine.train", 8544, 5),
        ("stsa.fine.dev", 1101, 5),
        ("stsa.fine.test", 2210, 5),
        ("stsa.binary.train", 6920, 2),
        ("stsa.binary.dev", 872, 2),
        ("stsa.binary.test", 1821, 2),
    ],
)
def test_stanford_sentiment_treebank(name, sentences, classes):
    found = files.read_labelled(real_data("sst", f"{name}.gz"))
    assert len(found["text"]) == len(found["label"]) == sentences
    assert set(found["label"]) == {str(n) for n in range(classes)}


@pytest.mark.parametrize(("name", "phrases"), [("train_full", 67_349), ("dev", 872)])
def test_sst2_of_glue(name, phrases):
    found = files.read_table(real_data("sst", "glue_sst2", f"{name}.tsv.gz"), "sentence", "label")
    assert len(found["text"]) == phrases and set(found["label"]) == {"0", "1"}
    if name == "dev":  # the same sentences, in a file of the other format
        labelled = files.read_labelled(real_data("sst", "stsa.binary.dev.gz"))
        assert Counter(found["label"]) == Counter(labelled["label"])


@pytest.mark.parametrize(
    ("name", "sentences"),
    [("in_domain_train", 8551), ("in_domain_dev", 527), ("out_of_domain_dev", 516)],
)
def test_cola(name, sentences):
    found = files.read_table(real_data("cola", f"{name}.tsv.gz"), "3", "1")
    assert len(found["text"]) == sentences and set(found["label"]) == {"0", "1"}


@pytest.mark.parametrize(
    ("name", "sentences", "words"),
    [("train", 12_544, 204_577), ("dev", 2001, 25_147), ("test", 2077, 25_094)],
)
def test_english_web_treebank(name, sentences, words):
    path = real_data("ud_english_ewt", f"en_ewt-ud-{name}.conllu.gz")
    found = files.read_conllu(path, "upos")
    assert len(found["words"]) == sentences
    assert sum(map(len, found["words"])) == sum(map(len, found["tags"])) == words
    if name == "train":
        assert len({tag for tags in found["tags"] for tag in tags}) == 17
        fine = files.read_conllu(path, "xpos")["tags"]
        assert len({tag for tags in fine for tag in tags}) == 49


@pytest.mark.parametrize(
    ("name", "posts", "words", "entities"),
    [
        ("wnut17train.conll", 3394, 62_730, 1975),
        ("emerging.dev.conll", 1009, 15_733, 836),
        ("emerging.test.annotated", 1287, 23_394, 1079),
    ],
)
def test_wnut17(name, posts, words, entities):
    found = files.read_conll(real_data("wnut17", f"{name}.gz"))
    tags = [tag for sentence in found["tags"] for tag in sentence]
    assert len(found["words"]) == posts
    assert sum(map(len, found["words"])) == len(tags) == words
    assert sum(tag.startswith("B-") for tag in tags) == entities
    assert len({tag[2:] for tag in tags} - {""}) == 6


@pytest.mark.parametrize(
    ("name", "tokens"), [("train", 2_088_628), ("valid", 217_646), ("test", 245_569)]
)
def test_wikitext2(name, tokens):
    path = real_data("wikitext2", f"{name}.txt.gz")
    (text,) = files.read_documents(path, "")["text"]
    assert len(text.split()) + text.count("\n") == tokens


def test_tiny_shakespeare():
    path = real_data("tinyshakespeare", "input.txt.gz")
    (text,) = files.read_documents(path, "")["text"]
    assert (len(text), len(set(text)), text.count("\n")) == (1_115_394, 65, 40_000)


def test_a_file_that_memory_cannot_hold_is_refused_and_one_that_hardly_fits_is_told(
    tmp_path, monkeypatch, caplog
):
    path = tmp_path / "train"
    path.write_text("a b c d\n" * 1000)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(20_000, 10_000))
    with pytest.raises(ValueError, match="train: reading this file takes at least 23.4 KiB"):
        files.read_lines(path)
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(30_000, 10_000))
    assert len(files.read_lines(path)) == 1000
    (record,) = caplog.records
    assert "9.8 KiB of it free" in record.getMessage()
    monkeypatch.setattr(machine, "memory", lambda: machine.Memory(30_000, 30_000))
    files.read_lines(path)
    assert len(caplog.records) == 1
