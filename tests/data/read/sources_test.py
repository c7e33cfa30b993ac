import gzip
import json
import os
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from tests.data.toy import source_settings
from transformer_jax.data.corpora import backcopy, bigram, grammar, repeat, zipf
from transformer_jax.data.read import sources
from transformer_jax.data.read.examples import Examples, concatenate
from transformer_jax.data.read.sources import LABELLED, NUMBERS, PAIRS, SOURCES, TAGGED, TEXTS

ENGLISH = ["a cat .", "", "two dogs\u2028run \x85 .", "  blanks  "]
GERMAN = ["eine katze .", "leer", "zwei hunde\u00a0.", "x"]


def load(source, folder, splits, columns=PAIRS, **changes) -> Examples:
    return concatenate(sources.read(source_settings(source, folder, **changes), columns, splits))


def write(path, lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


# What a file of each source holds, ...
CONTENTS = {
    "text": "a b\n",
    "scan": "IN: a OUT: b\n",
    "tsv": "text\tlabel\na b\tc\n",
    "labelled": "c a b\n",
    "conll": "a\tO\n",
    "conllu": "1\ta\t_\tX" + "\t_" * 6 + "\n",
    "json": '{"en": "a", "de": "b", "text": "a b", "label": "c", "words": ["a"], "tags": ["O"], '
    '"features": [[1, 2.5]], "values": 3}\n',
    "parquet": "",
    "babi": "1 a\n2 b?\tc\t1\n",
    "squad": '{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b", "answers": '
    '[{"text": "c"}]}]}]}]}',
}
FAIRYTALES = {
    PAIRS: ("questions/train/a-questions.csv", "question,cor_section,answer1,answer4\na,1,b,\n"),
    TEXTS: ("section-stories/train/a-story.csv", "section,text\n1,a\n"),
}
FIELDS = {
    TAGGED: {"text_feature": "words", "label_feature": "tags"},
    NUMBERS: {"text_feature": "features", "label_feature": "values"},
}
# ... and the features that the sources without files are read from.
FEATURES = {
    PAIRS: {},
    TEXTS: {"text_feature": "source"},
    LABELLED: {"text_feature": "source", "label_feature": "antecedent"},
    TAGGED: {"text_feature": "source", "label_feature": "tags"},
}
TOY_FEATURES = {
    TEXTS: {"text_feature": "en"},
    LABELLED: {"text_feature": "en", "label_feature": "class"},
    TAGGED: {"text_feature": "tags", "label_feature": "numbers"},
}


class Noting:
    """Settings that note which of them are asked for."""

    def __init__(self, settings):
        self.settings, self.names = settings, set()

    def __getattr__(self, name):
        self.names.add(name)
        return getattr(self.settings, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a split "train" for each source: in a folder of its own, or small and generated."""
    folder = tmp_path_factory.mktemp("sources")
    for source, content in CONTENTS.items():
        (folder / source).mkdir()
        for name in ("train", "train.en", "train.de"):
            (folder / source / name).write_text(content)
    for name, content in FAIRYTALES.values():
        (folder / "fairytaleqa" / name).parent.mkdir(parents=True)
        (folder / "fairytaleqa" / name).write_text(content)
    row = json.loads(CONTENTS["json"])
    table = pyarrow.table({name: [value] for name, value in row.items()})
    parquet.write_table(table, folder / "parquet" / "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "COUNTS", {"train": 20})
        for corpus in (backcopy, bigram, repeat, zipf):
            patch.setattr(corpus, "SPLITS", {"train": 3})
        yield folder


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        (source, columns)
        for source in SOURCES
        for columns in SOURCES[source]
        if columns in (*FEATURES, NUMBERS)  # of images in pictures_test
    ],
)
def test_each_source_yields_the_columns_that_it_says(folder, source, columns):
    changes = {
        "embedded": FEATURES.get(columns, {}),
        "tfds": {"name": "toy_translation"} | TOY_FEATURES.get(columns, {}),
        "conllu": {"label_feature": "upos"},
        "zipf": {"name": "0.5"},
        "json": FIELDS.get(columns, {}),
        "parquet": FIELDS.get(columns, {}),
    }.get(source, {})
    split = FAIRYTALES[columns][0] if source == "fairytaleqa" else "train"
    examples = load(source, folder / source, (split, split), columns, **changes)
    assert set(columns) <= set(examples)
    # Only the embedded corpus has others, which scores of translations need.
    assert set(columns) == set(examples) or (source, columns) == ("embedded", PAIRS)
    (length,) = {len(values) for values in examples.values()}
    noting: Any = Noting(source_settings(source, folder / source, **changes))
    once = concatenate(sources.read(noting, columns, (split,)))
    assert length == 2 * len(once[columns[0]]) > 0
    kind = list if columns in (TAGGED, NUMBERS) else str
    for name in columns:
        several = name == "target" and source in ("squad", "fairytaleqa")  # right answers
        kind_of = list if several else kind
        assert all(isinstance(value, kind_of) for value in examples[name])
    if columns == TAGGED:
        rows = list(zip(examples["words"], examples["tags"], strict=True))
        assert all(len(words) == len(tags) for words, tags in rows)
        assert all(isinstance(item, str) for words, tags in rows for item in words + tags)
    # `read` looks at source and dir of all, and prepared data lies in the cache.
    keys = noting.names - {"source", "dir", "cache_dir"}
    assert keys == set(SOURCES[source][columns].reads) - {"dir"}


def test_text_pairs_plain_and_gzip_are_read_one_after_the_other(tmp_path):
    write(tmp_path / "a.en", ENGLISH, end="\r\n")
    write(tmp_path / "a.de.gz", GERMAN)
    write(tmp_path / "b.en", ["one"])
    (tmp_path / "b.de").write_text("eins")  # no "\n" at the end
    examples = load("text", tmp_path, ("a", "b"))
    assert examples == {"source": [*ENGLISH, "one"], "target": [*GERMAN, "eins"]}


def test_unequal_files_name_both_counts(tmp_path):
    write(tmp_path / "a.en", ["x"] * 3)
    write(tmp_path / "a.de", ["x"] * 2)
    with pytest.raises(ValueError, match=r"a\.en has 3 lines and .*a\.de has 2"):
        load("text", tmp_path, ("a",))


def test_plain_text_that_nothing_separates_is_one_document(tmp_path):
    write(tmp_path / "a.txt", ["one", "", "two"])
    texts = load("text", tmp_path, ("a.txt",), TEXTS, document_separator="")
    assert texts == {"text": ["one\n\ntwo\n"]}


def test_a_separator_that_is_in_none_of_the_files_is_told(tmp_path, caplog):
    for name in ("a", "b", "c"):
        write(tmp_path / name, [name, f"{name}\n", name])

    def warnings(*splits, **changes):
        caplog.clear()
        load("text", tmp_path, splits, TEXTS, **changes)
        return [message for message in caplog.messages if "document_separator" in message]

    assert not warnings("a") and not warnings("?", document_separator="\n\n")
    assert not warnings("a", document_separator="")
    (message,) = warnings("?", document_separator="\\n\\n")
    assert r"'\\n\\n' divides none of ?" in message
    (tmp_path / "c").write_text("c<e>d")  # one is enough
    assert not warnings("?", document_separator="<e>")


def test_labelled_texts_and_tagged_words_are_texts_to_pre_train_on_too(tmp_path):
    write(tmp_path / "a.tsv", ["text\tlabel", "a b\tc"])
    assert load("tsv", tmp_path, ("a.tsv",), TEXTS) == {"text": ["a b"]}
    write(tmp_path / "conll", ["a\tO", "b\tB-x", "", "c\tO"])
    assert load("conll", tmp_path, ("conll",), TEXTS) == {"text": ["a b", "c"]}


@pytest.mark.parametrize("columns", [*FEATURES, NUMBERS])
def test_a_source_that_does_not_yield_the_columns_names_those_that_do(tmp_path, columns):
    serving = [name for name, readers in SOURCES.items() if columns in readers]
    message = f"yield {' and '.join(columns)}, .*: {', '.join(serving)}$"
    for source in set(SOURCES) - set(serving):
        with pytest.raises(ValueError, match=message):
            sources.find_files(source_settings(source, tmp_path), columns, ("train",))


@pytest.mark.parametrize("source", ["bigram_copy", "backcopy", "repeat", "zipf"])
def test_an_unknown_split_of_a_generated_language_is_refused(source, tmp_path):
    with pytest.raises(ValueError, match=f"'{source}' has no split 'dev'.* splits are train"):
        load(source, tmp_path, ("dev",), TEXTS)


@pytest.mark.parametrize("name", ["", "half", "0", "-1", "inf", "nan"])
def test_an_exponent_that_is_no_number_above_0_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"data.name='{name}' is no exponent .* above 0"):
        load("zipf", tmp_path, ("train",), TEXTS, name=name)


def test_files_are_found_before_they_are_read(tmp_path):
    """So a missing one is told before minutes are spent on reading the others."""
    for name in ("train", "test.gz", "a.en", "a.de"):
        (tmp_path / name).write_text("whatever it holds")
    for source, columns, splits, expected in (
        ("conll", TAGGED, ("train", "test"), [("train",), ("test.gz",)]),
        ("text", TEXTS, ("train",), [("train",)]),
        ("text", PAIRS, ("a",), [("a.en", "a.de")]),
        ("embedded", PAIRS, ("train",), []),
        ("tfds", TEXTS, ("train",), []),
        ("bigram_copy", TEXTS, ("train",), []),
    ):
        paths = sources.find_files(source_settings(source, tmp_path), columns, splits)
        assert paths == [tuple(tmp_path / name for name in names) for names in expected]


def test_a_pattern_names_files_in_alphabetical_order(tmp_path):
    for name, content in (("b.en", "2"), ("a.en", "1"), ("b.de", "4"), ("a.de", "3"), ("c", "5")):
        write(tmp_path / name, [content])
    write(tmp_path / "d.de.gz", ["7"])
    write(tmp_path / "d.en", ["6"])
    assert load("text", tmp_path, ("*",)) == {"source": ["1", "2", "6"], "target": ["3", "4", "7"]}
    assert load("text", tmp_path, ("[ab].en", "c"), TEXTS)["text"] == ["1", "2", "5"]
    assert load("text", tmp_path, ("?.de",), TEXTS)["text"] == ["3", "4", "7"]  # one is packed
    assert load("text", tmp_path, ("d.*",), TEXTS)["text"] == ["7", "6"]
    (tmp_path / "d.de").write_text("7\n")  # as zstd leaves what it unpacks: it counts once
    assert load("text", tmp_path, ("d.*",), TEXTS)["text"] == ["7", "6"]
    for number, place in enumerate(("of/one", "of/two", "off/one")):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        write(tmp_path / place, [str(number)])
    assert load("text", tmp_path, ("of*/one",), TEXTS)["text"] == ["0", "2"]
    for hidden in (".c", "._c.gz", "of/.one", ".of/one"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        write(tmp_path / hidden, ["hidden"])
    assert load("text", tmp_path, ("*c*",), TEXTS)["text"] == ["5"]
    assert load("text", tmp_path, ("*/*one",), TEXTS)["text"] == ["0", "2"]
    assert load("text", tmp_path, ("**/c",), TEXTS)["text"] == ["5"]
    assert load("text", tmp_path, (".c*", ".o*/one"), TEXTS)["text"] == ["hidden"] * 2
    with pytest.raises(FileNotFoundError, match="x-.*: no file matches"):
        load("text", tmp_path, ("x-*",))
    (tmp_path / "e.en").write_text("8")
    with pytest.raises(FileNotFoundError, match="e.de"):
        load("text", tmp_path, ("*",))


def test_a_version_tells_one_state_of_the_files_from_another_and_reads_none(tmp_path):
    def version(split="a", **changes):
        settings = source_settings("text", tmp_path, **changes)
        return json.dumps(sources.version(settings, TEXTS, (split,)))

    (tmp_path / "a").write_bytes(b"\xff")  # which nobody could read
    os.utime(tmp_path / "a", ns=(10**18, 10**18))
    versions = [version()]
    assert version() == versions[0]
    assert version(label_feature="others") == versions[0]  # plain text has none
    versions.append(version(document_separator=""))
    os.utime(tmp_path / "a", ns=(10**18, 10**18 + 1))
    versions.append(version())
    (tmp_path / "a").write_bytes(b"\xff\xff")
    os.utime(tmp_path / "a", ns=(10**18, 10**18 + 1))
    versions.append(version())
    (tmp_path / "b").mkdir()
    (tmp_path / "a").rename(tmp_path / "b" / "a")
    versions.append(version(split="b/a"))
    assert len(set(versions)) == 5


@pytest.mark.parametrize(
    ("size", "place", "seen"),
    [
        *((5, place, True) for place in range(5)),
        *((2**16, place, True) for place in range(0, 2**16, 997)),
        *((2**20, place, True) for place in (0, 2**20 - 1, (2**20 - 2**12) * 7 // 15)),
        (2**20, 2**13, False),  # so that a start is as quick as before: `prepare --check` sees it
    ],
)
def test_content_tells_files_of_one_name_size_and_time_apart(tmp_path, size, place, seen):
    versions = []
    for value in (0, 1):
        data = bytearray(size)
        data[place] = value
        (tmp_path / "a").write_bytes(data)
        os.utime(tmp_path / "a", ns=(1, 1))
        versions.append(sources.version(source_settings("text", tmp_path), TEXTS, ("a",)))
    assert (versions[0] != versions[1]) == seen


def test_folders_of_the_same_files_are_told_apart_behind_links(tmp_path):
    """So what differs between the blocks that are looked at is never taken for the same."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a", ["x"])
        os.utime(tmp_path / name / "a", ns=(1, 1))
    versions = []
    for target in ("one", "two", "one"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        versions.append(sources.version(source_settings("text", tmp_path / "link"), TEXTS, ("a",)))
    versions.append(sources.version(source_settings("text", tmp_path / "one"), TEXTS, ("a",)))
    assert versions[0] == versions[2] == versions[3] != versions[1]
    for name in ("one", "two"):  # links to files, as the caches of downloads have them
        (tmp_path / f"to_{name}").symlink_to(tmp_path / name / "a")
        (tmp_path / f"to_{name}").replace(tmp_path / "a")
        versions.append(sources.version(source_settings("text", tmp_path), TEXTS, ("a",)))
    assert versions[4] != versions[5]


def test_a_version_tells_one_state_of_what_is_read_along_from_another(tmp_path):
    for name in ("questions/val/x-questions.csv", "section-stories/val/x-story.csv"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    settings = source_settings("fairytaleqa", tmp_path)
    splits = ("questions/val/x-questions.csv",)
    before = sources.version(settings, PAIRS, splits)
    write(tmp_path / "section-stories/val/x-story.csv", ["another"])
    assert sources.version(settings, PAIRS, splits) != before
    (tmp_path / "section-stories/val/x-story.csv").unlink()
    with pytest.raises(FileNotFoundError, match="x-story.csv"):
        sources.version(settings, PAIRS, splits)


@pytest.mark.parametrize("lines", [["one", "two", "three"], ["two", "one"]])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, lines):
    """Whatever its time says."""
    write(tmp_path / "a", ["one", "two"])
    os.utime(tmp_path / "a", ns=(1, 1))
    pieces = sources.read(source_settings("text", tmp_path), TEXTS, ("a",))
    next(pieces)
    write(tmp_path / "a", lines)
    os.utime(tmp_path / "a", ns=(1, 1))
    with pytest.raises(ValueError, match="a changed while it was read"):
        list(pieces)
