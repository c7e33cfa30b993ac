"""Readers of files yield the right columns; mistakes name file and line, or are skipped."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest

from transformer_jax.data.read import parse, questions
from transformer_jax.data.read.sources import LABELLED, NUMBERS, PAIRS, TAGGED, TEXTS


def file(folder: Path, text: str) -> Path:
    (folder / "f").write_bytes(text.encode())
    return folder / "f"


def read(reader, *arguments):
    return list(reader(*arguments, skip_bad=False))


TABLE = "id\tsentence\tlabel\n7\ta \"b\tyes\n8\tc'\u2028\u00a0 d\tno\n"
CONLL = (
    "-DOCSTART- -X- O O\n\nEU NNP  B-NP B-ORG \n# # O O\n\t\n"
    "#tag X Y O\r\n\ufeffa\u00a0b X Y B-x\n \n\n-DOCSTART- X Y O\n\nlast X Y  O"
)
TABBED = (
    "# id 17\tdomain=en\n# text = New York\nNew York \t\tB-LOC\n#win\t\tO\n#\tx\t O \r\n\n"
    "# id 18\tdomain=en\n-DOCSTART-\tx\tO\n\n# a\tb\tc\nlast\tx\tO"
)
CONLLU = """\
# text = Vámonos # now
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV1\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP1\tCase=Acc\t1\tobj\t_\t_
2.1\tya\tya\tADV\tR\t_\t_\t_\t1:advmod\t_

# newpar
1\t#\t#\tSYM\tS\t_\t0\troot\t_\t_
"""
CONLLU_TAGS = {
    "lemma": (["ir", "nosotros"], ["#"]),
    "upos": (["VERB", "PRON"], ["SYM"]),
    "xpos": (["V1", "P1"], ["S"]),
    "feats": (["Mood=Imp", "Case=Acc"], ["_"]),
    "deprel": (["root", "obj"], ["root"]),
}
SCAN = "IN: jump twice OUT: I_JUMP I_JUMP\nIN: run OUT: I_RUN\n"


@pytest.mark.parametrize(
    ("reader", "settings", "text", "rows"),
    [
        (parse.read_scan, (), SCAN, [("jump twice", "I_JUMP I_JUMP"), ("run", "I_RUN")]),
        # Columns by the names in the header, or by their places; there are no quotes.
        (
            parse.read_table,
            ("sentence", "label"),
            TABLE,
            [('a "b', "yes"), ("c'\u2028\u00a0 d", "no")],
        ),
        (
            parse.read_table,
            ("3", "1"),
            "gj04\t1\t\tThe sailors rode .\ngj04\t0\t*\tSailors the .\n",
            [("The sailors rode .", "1"), ("Sailors the .", "0")],
        ),
        # White space around a label is cut.
        (
            parse.read_table,
            ("1", "0"),
            "pos\ta \npos \t b\n\u00a0pos\tc\n",
            [("a ", "pos"), (" b", "pos"), ("c", "pos")],
        ),
        (
            parse.read_labelled,
            (),
            "1 a good\u00a0film .\n0\u00a0x  bad\n",
            [("a good\u00a0film .", "1"), (" bad", "0\u00a0x")],
        ),
        (
            parse.read_conll,
            (),
            CONLL,
            [
                (["EU", "#"], ["B-ORG", "O"]),
                (["#tag", "\ufeffa\u00a0b"], ["O", "B-x"]),
                (["last"], ["O"]),
            ],
        ),
        # Between tabs cells may have blanks, and comments are told from words.
        (
            parse.read_conll,
            (),
            TABBED,
            [(["New York", "#win", "#"], ["B-LOC", "O", "O"]), (["last"], ["O"])],
        ),
        *(
            (parse.read_conllu, (name,), CONLLU, [(["Vamos", "nos"], first), (["#"], second)])
            for name, (first, second) in CONLLU_TAGS.items()
        ),
    ],
)
def test_each_format_is_read_as_it_is_meant(tmp_path, reader, settings, text, rows):
    assert read(reader, file(tmp_path, text), *settings) == rows


@pytest.mark.parametrize(
    ("reader", "settings", "text", "message"),
    [
        (parse.read_table, ("text", "label"), TABLE, "'text', but its columns are 'id', 'sent"),
        (parse.read_table, ("sentence", "2"), TABLE, "data.label_feature='2', but .* 'id', 'sent"),
        (parse.read_table, ("0", "3"), TABLE, "data.label_feature='3', but .* '0', '1', '2'"),
        (parse.read_table, ("a", "b"), "a\tb\ta\n", "'a', but its columns are 'a', 'b', 'a'"),
        (parse.read_table, ("a", "b"), "a\tb\n", "f: there are no rows below the header"),
        (parse.read_conll, (), "# newdoc\na O\n", "f:2: '# newdoc' is no row, and a comment only"),
        (parse.read_conll, (), CONLLU, "f:2: of another CoNLL's .*data.source='conllu'"),
        (parse.read_conllu, ("antecedent",), CONLLU, "'antecedent'.* lemma, upos, xpos"),
        (parse.read_conllu, ("upos",), "a/b\t" + "0\t" * 8 + "*\n", "f:1: expected the ten .* id"),
        (questions.read_babi, (), "1 a\n2 q?\ta\t1 3 q?\tb\t1\n", "f:2: expected 'ID text' or"),
        (parse.read_scan, (), "IN: a OUT: A IN: b OUT: B\n", "f:1: expected 'IN: words OUT: ACTI"),
        (parse.read_labelled, (), "good film __label__a\n", "f:1: expected one label __label__"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, reader, settings, text, message):
    with pytest.raises(ValueError, match=message):
        read(reader, file(tmp_path, text), *settings)


def test_lines_that_may_be_skipped_do_not_make_words_of_another_format(tmp_path):
    for text in (CONLLU, "#begin document (a); part 0\na/b 0 0 c D\n"):
        with pytest.raises(ValueError, match="f: the file holds no sentence"):
            list(parse.read_conll(file(tmp_path, text), skip_bad=True))


def test_a_header_that_is_read_as_a_row_is_warned_of(tmp_path, caplog):
    rows = "pos\ta\nneg\tb\npos\tc\nneg\td\n"
    read(parse.read_table, file(tmp_path, rows), "1", "0")
    assert not caplog.messages
    first, *_ = read(parse.read_table, file(tmp_path, f"label\ttext\n{rows}"), "1", "0")
    assert first == ("text", "label")
    (message,) = caplog.messages
    assert "f:1: the label 'label' is on no other line" in message


OBJECTS = [
    {"text": "a b", "label": 1, "words": ["a", "b"], "tags": ["X", 2]},
    {"text": "é", "label": "no", "words": [], "tags": [], "more": None},
]


def objects(folder, ending, rows):
    """A file of these objects, behind its reader."""
    if ending == "json":
        return parse.read_json, file(folder, "\n".join(map(json.dumps, rows)) + "\n\n")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "f")
    return parse.read_parquet, folder / "f"


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_named_fields_of_objects(tmp_path, ending):
    texts = [{"label": str(row["label"]), "tags": list(map(str, row["tags"]))} for row in OBJECTS]
    rows = OBJECTS if ending == "json" else [a | b for a, b in zip(OBJECTS, texts, strict=True)]
    reader, path = objects(tmp_path, ending, rows)
    assert read(reader, LABELLED, path, "text", "label") == [("a b", "1"), ("é", "no")]
    tagged = read(reader, TAGGED, path, "words", "tags")
    assert tagged == [(["a", "b"], ["X", "2"]), ([], [])]
    message = "(no field 'body'; its fields are|one 'body' among its columns) text"
    with pytest.raises(ValueError, match=message):
        read(reader, TEXTS, path, "body")


def test_pages_of_parquet_that_are_broken_are_told_with_their_file(tmp_path):
    path, plain = tmp_path / "f", {"compression": "none", "use_dictionary": False}
    parquet.write_table(pyarrow.table({"text": ["a b"]}), path, **plain)
    data = path.read_bytes()
    for broken in (b"\4\0\0\0a b", b"\3\0\0\0\xffxx"):  # another length, no UTF-8
        path.write_bytes(data.replace(b"\3\0\0\0a b", broken))
        with pytest.raises(ValueError, match="f: not a whole Parquet file"):
            read(parse.read_parquet, TEXTS, path, "text")


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_numbers_come_as_lists_of_whatever_depth(tmp_path, ending):
    one, other = [[1.5, 2], [3, 4]], [[0.25, -1]]
    rows = [{"given": one, "asked": 7}, {"given": other, "asked": 1e-3}]
    reader, path = objects(tmp_path, ending, rows)
    assert read(reader, NUMBERS, path, "given", "asked") == [(one, [7]), (other, [1e-3])]


@pytest.mark.parametrize("value", ['"1"', "null", "true", "[1, [NaN]]", "1e999", '{"a": 1}'])
def test_what_is_no_finite_number_is_refused_with_its_line(tmp_path, value):
    path = file(tmp_path, f'{{"x": [1], "y": [2]}}\n{{"x": {value}, "y": 0}}')
    with pytest.raises(ValueError, match="f:2: the field 'x' holds .*, which is no finite number"):
        read(parse.read_json, NUMBERS, path, "x", "y")


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_dots_reach_into_nested_objects_unless_a_field_has_them(tmp_path, ending):
    rows = [{"pair": {"en": "a", "de": {"text": "b"}}, "pair.en": "c"}, {"pair": {"en": "d"}}]
    rows[1] |= {"pair.en": "f", "pair": {"en": "d", "de": {"text": "e"}}}
    reader, path = objects(tmp_path, ending, rows)
    assert read(reader, PAIRS, path, "pair.de.text", "pair.de.text") == [("b", "b"), ("e", "e")]
    if ending == "json":
        assert read(reader, TEXTS, path, "pair.en") == [("c",), ("f",)]
        with pytest.raises(ValueError, match="f:1: there is no field 'pair.fr.text'; its fields"):
            read(reader, TEXTS, path, "pair.fr.text")
    with pytest.raises(ValueError, match="(no field|expected one) 'other.en'"):
        read(reader, TEXTS, path, "other.en")


def test_words_and_tags_may_be_separated_by_blanks_and_nothing_else(tmp_path):
    path = file(tmp_path, json.dumps({"words": "the\u00a0old dog", "tags": " DET  NOUN"}))
    rows = read(parse.read_json, TAGGED, path, *TAGGED)
    assert rows == [(["the\u00a0old", "dog"], ["DET", "NOUN"])]


def test_blank_texts_are_no_references_beside_others(tmp_path):
    rows = [
        {"a": "x", "b1": "", "b2": "y"},
        {"a": "x", "b1": " ", "b2": ""},
        {"a": "x", "b": ["y"]},
    ]
    reader, path = objects(tmp_path, "json", rows[:2])
    assert read(reader, PAIRS, path, "a", "b*") == [("x", ["y"]), ("x", " ")]
    reader, path = objects(tmp_path, "json", rows[2:])
    assert read(reader, PAIRS, path, "a", "b") == [("x", ["y"])]
