"""Readers of files yield the right columns; mistakes name file and line, or are skipped."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from transformer_jax.data.read import parse
from transformer_jax.data.read.open_file import read_documents
from transformer_jax.data.read.sources import LABELLED, NUMBERS, PAIRS, TAGGED, TEXTS


def file(folder: Path, text: str) -> Path:
    (folder / "f").write_bytes(text.encode())
    return folder / "f"


def real_data(*path: str) -> Path:
    """A file in the folder of real data; without it the test is skipped."""
    folder = os.environ.get("TRANSFORMER_JAX_DATA")
    if folder is None or not Path(folder, *path).exists():
        pytest.skip(f"TRANSFORMER_JAX_DATA names no folder with {path[0]}")
    return Path(folder, *path)


def read(reader, columns, *settings, skip_bad=False):
    """The columns of all rows."""
    rows = reader(*settings, skip_bad=skip_bad)
    return dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


TABLE = "id\tsentence\tlabel\n7\ta \"b\tyes\n8\tc'\u2028\u00a0 d\tno\n"


def test_table_with_a_header_has_no_quotes(tmp_path):
    expected = {"text": ['a "b', "c'\u2028\u00a0 d"], "label": ["yes", "no"]}
    assert read(parse.read_table, LABELLED, file(tmp_path, TABLE), "sentence", "label") == expected


def test_table_without_header_has_numbered_columns(tmp_path):
    path = file(tmp_path, "gj04\t1\t\tThe sailors rode .\ngj04\t0\t*\tSailors the .\n")
    expected = {"text": ["The sailors rode .", "Sailors the ."], "label": ["1", "0"]}
    assert read(parse.read_table, LABELLED, path, "3", "1") == expected


def test_a_header_that_is_read_as_a_row_is_warned_of(tmp_path, caplog):
    rows = "pos\ta\nneg\tb\npos\tc\nneg\td\n"
    read(parse.read_table, LABELLED, file(tmp_path, rows), "1", "0")
    assert not caplog.messages
    assert (
        read(parse.read_table, LABELLED, file(tmp_path, f"label\ttext\n{rows}"), "1", "0")["label"][
            0
        ]
        == "label"
    )
    (message,) = caplog.messages
    assert "f:1: the label 'label' is on no other line" in message


def test_white_space_around_a_label_of_a_table_is_cut(tmp_path):
    path = file(tmp_path, "pos\ta \npos \t b\n\u00a0pos\tc\n")
    found = read(parse.read_table, LABELLED, path, "1", "0")
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
        read(parse.read_table, LABELLED, file(tmp_path, text), *columns)


def test_labelled_lines_are_divided_at_the_first_blank(tmp_path):
    path = file(tmp_path, "1 a good\u00a0film .\n0\u00a0x  bad\n")
    expected = {"text": ["a good\u00a0film .", " bad"], "label": ["1", "0\u00a0x"]}
    assert read(parse.read_labelled, LABELLED, path) == expected


@pytest.mark.parametrize("line", ["1", "", " a film", "1\tfilm", "1\u00a0film"])
def test_labelled_line_without_label(tmp_path, line):
    with pytest.raises(ValueError, match="f:2: expected 'LABEL sentence'"):
        read(parse.read_labelled, LABELLED, file(tmp_path, f"1 a\n{line}\n"))


def test_a_tab_in_a_label_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"f:2: there is a tab in the label 'neg\\tbad'; .*'tsv'"):
        read(parse.read_labelled, LABELLED, file(tmp_path, "pos good film\nneg\tbad film\n"))


def test_conll_takes_the_first_and_the_last_column(tmp_path):
    text = (
        "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\t\n"
        "#tag\tO \r\n\ufeffa\u00a0b\tB-x\n \n\n-DOCSTART-\tO\n\nlast  \t O"
    )
    assert read(parse.read_conll, TAGGED, file(tmp_path, text)) == {
        "words": [["EU", "rejects"], ["#tag", "\ufeffa\u00a0b"], ["last"]],
        "tags": [["B-ORG", "O"], ["O", "B-x"], ["O"]],
    }


@pytest.mark.parametrize("line", ["word", "word\t", "\tO"])
def test_conll_line_without_word_or_tag(tmp_path, line):
    with pytest.raises(ValueError, match="f:3: expected a word and, in the last column, its tag"):
        read(parse.read_conll, TAGGED, file(tmp_path, f"a\tO\n\n{line}\n"))


def test_conll_without_sentence(tmp_path):
    with pytest.raises(ValueError, match="f: the file holds no sentence"):
        read(parse.read_conll, TAGGED, file(tmp_path, "-DOCSTART- O\n\n"))


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
    found = read(parse.read_conllu, TAGGED, file(tmp_path, CONLLU), column)
    assert found == {"words": [["Vamos", "nos"], ["#"]], "tags": tags}


def test_conllu_that_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="data.label_feature='antecedent'.* lemma, upos, xpos"):
        read(parse.read_conllu, TAGGED, file(tmp_path, CONLLU), "antecedent")
    with pytest.raises(ValueError, match="f:10: expected the ten columns .*got '2 b'"):
        read(parse.read_conllu, TAGGED, file(tmp_path, CONLLU + "\n2 b\n"), "upos")


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
    found = read(parse.read_labelled, LABELLED, real_data("sst", f"{name}.gz"))
    assert len(found["text"]) == len(found["label"]) == sentences
    assert set(found["label"]) == {str(n) for n in range(classes)}


@pytest.mark.parametrize(("name", "phrases"), [("train_full", 67_349), ("dev", 872)])
def test_sst2_of_glue(name, phrases):
    found = read(
        parse.read_table,
        LABELLED,
        real_data("sst", "glue_sst2", f"{name}.tsv.gz"),
        "sentence",
        "label",
    )
    assert len(found["text"]) == phrases and set(found["label"]) == {"0", "1"}
    if name == "dev":  # the same sentences, in a file of the other format
        labelled = read(parse.read_labelled, LABELLED, real_data("sst", "stsa.binary.dev.gz"))
        assert Counter(found["label"]) == Counter(labelled["label"])


@pytest.mark.parametrize(
    ("name", "sentences"),
    [("in_domain_train", 8551), ("in_domain_dev", 527), ("out_of_domain_dev", 516)],
)
def test_cola(name, sentences):
    found = read(parse.read_table, LABELLED, real_data("cola", f"{name}.tsv.gz"), "3", "1")
    assert len(found["text"]) == sentences and set(found["label"]) == {"0", "1"}


@pytest.mark.parametrize(
    ("name", "sentences", "words"),
    [("train", 12_544, 204_577), ("dev", 2001, 25_147), ("test", 2077, 25_094)],
)
def test_english_web_treebank(name, sentences, words):
    path = real_data("ud_english_ewt", f"en_ewt-ud-{name}.conllu.gz")
    found = read(parse.read_conllu, TAGGED, path, "upos")
    assert len(found["words"]) == sentences
    assert sum(map(len, found["words"])) == sum(map(len, found["tags"])) == words
    if name == "train":
        assert len({tag for tags in found["tags"] for tag in tags}) == 17
        fine = read(parse.read_conllu, TAGGED, path, "xpos")["tags"]
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
    found = read(parse.read_conll, TAGGED, real_data("wnut17", f"{name}.gz"))
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
    text = "".join(read_documents(path, ""))
    assert len(text.split()) + text.count("\n") == tokens


def test_tiny_shakespeare():
    path = real_data("tinyshakespeare", "input.txt.gz")
    text = "".join(read_documents(path, ""))
    assert (len(text), len(set(text)), text.count("\n")) == (1_115_394, 65, 40_000)


OBJECTS = [
    {"text": "a b", "label": 1, "words": ["a", "b"], "tags": ["X", 2]},
    {"text": "é", "label": "no", "words": [], "tags": [], "more": None},
]


def write_objects(folder, ending):
    if ending == "json":
        path = file(folder, "\n".join(json.dumps(row) for row in OBJECTS) + "\n\n")
        return parse.read_json, path
    columns = {name: [row[name] for row in OBJECTS] for name in ("text", "words")}
    columns |= {"label": ["1", "no"], "tags": [["X", "2"], []]}
    parquet.write_table(pyarrow.table(columns), folder / "f")
    return parse.read_parquet, folder / "f"


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_named_fields_of_objects(tmp_path, ending):
    reader, path = write_objects(tmp_path, ending)
    found = read(reader, LABELLED, LABELLED, path, "text", "label")
    assert found == {"text": ["a b", "é"], "label": ["1", "no"]}
    found = read(reader, TAGGED, TAGGED, path, "words", "tags")
    assert found == {"words": [["a", "b"], []], "tags": [["X", "2"], []]}
    with pytest.raises(ValueError, match="no (field|column) 'body'; its (fields|columns) are text"):
        read(reader, TEXTS, TEXTS, path, "body")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "f:2: expected a JSON object, but it is a list"),
        ("{'text'", "f:2: expected a JSON object .Expecting"),
        ('{"texts": "a"}', "f:2: there is no field 'text'; its fields are texts"),
        ('{"text": null}', "f:2: the field 'text' is a NoneType, not a text"),
        ('{"text": 1.5}', "f:2: the field 'text' is a float, not a text"),
        ('{"text": [["a"]]}', "f:2: the field 'text' is a list, not a text"),
        ('{"text": ["a"]}', "f:2: the field 'text' is a list, not a text"),
        ('{"text": "a \\ud83d b"}', r"f:2: '.ud83d' is half a character"),
    ],
)
def test_a_bad_line_is_refused_or_skipped_and_counted(tmp_path, caplog, line, message):
    path = file(tmp_path, f'{{"text": "a"}}\n{line}\n{{"text": "b"}}\n')
    with pytest.raises(ValueError, match=message):
        read(parse.read_json, TEXTS, TEXTS, path, "text")
    assert not caplog.messages
    found = read(parse.read_json, TEXTS, TEXTS, path, "text", skip_bad=True)
    assert found == {"text": ["a", "b"]}
    (warning,) = caplog.messages
    assert "1 lines of f are left out" in warning and re.search(message, warning)


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        (PAIRS, ("a", []), "the field 'target' is an empty list"),
        (PAIRS, (["a"], "b"), "the field 'source' is a list, not a text"),
        (LABELLED, ("a", ["x"]), "the field 'label' is a list, not a text"),
        (TAGGED, (["a", "b"], ["X"]), "2 words, but 1 tags"),
    ],
)
def test_what_a_column_cannot_hold_is_refused_with_its_line(tmp_path, columns, row, message):
    path = file(tmp_path, json.dumps(dict(zip(columns, row, strict=True))))
    with pytest.raises(ValueError, match=f"f:1: {message}"):
        read(parse.read_json, columns, columns, path, *columns)


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_numbers_come_as_lists_of_whatever_depth(tmp_path, ending):
    values = {"given": [[[1.5, 2], [3, 4]], [[0.25, -1]]], "asked": [7, 1e-3]}
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    path = file(tmp_path, "\n".join(map(json.dumps, rows)))
    if ending == "parquet":
        parquet.write_table(pyarrow.table(values), path)
    reader = {"json": parse.read_json, "parquet": parse.read_parquet}[ending]
    found = read(reader, NUMBERS, NUMBERS, path, "given", "asked")
    assert found == {"features": values["given"], "values": [[7], [1e-3]]}


@pytest.mark.parametrize("value", ['"1"', "null", "true", "[1, [NaN]]", "1e999", '{"a": 1}'])
def test_what_is_no_finite_number_is_refused_with_its_line(tmp_path, value):
    path = file(tmp_path, f'{{"x": [1], "y": [2]}}\n{{"x": {value}, "y": 0}}')
    with pytest.raises(ValueError, match="f:2: the field 'x' holds .*, which is no finite number"):
        read(parse.read_json, NUMBERS, NUMBERS, path, "x", "y")


def test_words_and_tags_may_be_separated_by_blanks(tmp_path):
    path = file(tmp_path, json.dumps({"words": "the dog", "tags": "DET NOUN"}))
    found = read(parse.read_json, TAGGED, TAGGED, path, *TAGGED)
    assert found == {"words": [["the", "dog"]], "tags": [["DET", "NOUN"]]}


def test_bad_lines_of_every_format_can_be_skipped(tmp_path):
    for reader, settings, lines, good in (
        (parse.read_scan, (), ["IN: a OUT: b", "x"], [("a", "b")]),
        (parse.read_table, ("0", "1"), ["a\tb", "x", "c\t "], [("a", "b")]),
        (parse.read_labelled, (), ["b a", "x"], [("a", "b")]),
        (parse.read_conll, (), ["a b", "x"], [(["a"], ["b"])]),
    ):
        path = file(tmp_path, "\n".join(lines))
        assert list(reader(path, *settings, skip_bad=True)) == good
    for name, data in (("a", b"x\n\xff\ny\nz\n"), ("b", b"1\n2\n\xff\n4\n")):
        (tmp_path / name).write_bytes(data)
    pairs = parse.read_pair(tmp_path / "a", tmp_path / "b", skip_bad=True)
    assert list(pairs) == [("x", "1"), ("z", "4")]


def test_a_broken_parquet_file(tmp_path):
    path = tmp_path / "damaged"
    parquet.write_table(pyarrow.table({"text": [f"{n} a text" for n in range(5000)]}), path)
    data = bytearray(path.read_bytes())
    data[500:2000] = bytes(1500)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged: not a whole Parquet file"):
        read(parse.read_parquet, TEXTS, TEXTS, path, "text")
    with pytest.raises(ValueError, match="f: not a whole Parquet file"):
        read(parse.read_parquet, TEXTS, TEXTS, file(tmp_path, "PAR1"), "text")
