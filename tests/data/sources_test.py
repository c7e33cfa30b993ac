import gzip
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from transformer_jax.data import sources

ENGLISH = ["a cat .", "", "two dogs\u2028run \x85 .", "  blanks  "]
GERMAN = ["eine katze .", "leer", "zwei hunde\u00a0.", "x"]


class ToyTranslation(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "en": tfds.features.Text(),
            "de": tfds.features.Text(),
            "tags": tfds.features.Sequence(tfds.features.Text()),
            "count": tfds.features.Scalar(dtype=np.int64),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples("train", 6),
            "test": self._generate_examples("test", 2),
        }

    def _generate_examples(self, split, n):
        for i in range(n):
            yield (
                i,
                {
                    "en": f"{split} {i}",
                    "de": f"straße {i}",
                    "tags": ["a", "é"][: i % 3],
                    "count": i,
                },
            )


def load(source, tmp_path, splits, **changes) -> sources.Examples:
    arguments: dict[str, Any] = dict(
        source=source,
        dir=str(tmp_path),
        name="",
        splits=splits,
        source_language="en",
        target_language="de",
        cache_dir=str(tmp_path / "cache"),
    )
    return sources.load(**(arguments | changes))


def write(path, lines, end="\n"):
    data = "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_text_pairs_plain_and_gzip_are_read_one_after_the_other(tmp_path):
    write(tmp_path / "a.en", ENGLISH, end="\r\n")
    write(tmp_path / "a.de.gz", GERMAN)
    write(tmp_path / "b.en", ["one"])
    (tmp_path / "b.de").write_text("eins")  # no "\n" at the end
    examples = load("text", tmp_path, ("a", "b"))
    assert examples == {"source": [*ENGLISH, "one"], "target": [*GERMAN, "eins"]}


def test_only_one_carriage_return_is_cut_and_only_before_the_end_of_line(tmp_path):
    (tmp_path / "f").write_bytes(b"a\rb\r\r\n\x0c\n")
    assert sources.read_lines(tmp_path / "f") == ["a\rb\r", "\x0c"]


def test_unequal_files_name_both_counts(tmp_path):
    write(tmp_path / "a.en", ["x"] * 3)
    write(tmp_path / "a.de", ["x"] * 2)
    with pytest.raises(ValueError, match=r"a\.en has 3 lines and .*a\.de has 2"):
        load("text", tmp_path, ("a",))


def test_missing_file_and_folder(tmp_path):
    write(tmp_path / "a.en", ["x"])
    with pytest.raises(FileNotFoundError, match=r"a\.de\b.*\.gz"):
        load("text", tmp_path, ("a",))
    with pytest.raises(FileNotFoundError, match="data.dir='.*nowhere'"):
        load("text", tmp_path, ("a",), dir=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="needs data.dir"):
        load("scan", tmp_path, ("a",), dir="")
    with pytest.raises(ValueError, match="data.source='txt'"):
        load("txt", tmp_path, ("a",))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty", b"", "empty: the file is empty"),
        ("empty.gz", gzip.compress(b"", mtime=0), "the file is empty"),
        ("latin", "fein\nschön\n".encode("latin-1"), "latin:2: not UTF-8 .byte 0xf6"),
        ("cut.gz", gzip.compress(b"hello\n" * 99, mtime=0)[:-9], "cut.gz: not a whole gzip file"),
        ("fake.gz", b"plain text\n", "fake.gz: not a whole gzip file"),
    ],
)
def test_unreadable_contents(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        sources.read_lines(tmp_path / name)


def test_folder_and_forbidden_file(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        sources.read_lines(tmp_path)
    (tmp_path / "f").write_text("x")
    (tmp_path / "f").chmod(0)
    if not os.access(tmp_path / "f", os.R_OK):  # root may read everything
        with pytest.raises(ValueError, match="f: cannot be read .Permission"):
            sources.read_lines(tmp_path / "f")


def test_scan_lines(tmp_path):
    write(tmp_path / "s.txt.gz", ["IN: jump twice OUT: I_JUMP I_JUMP", "IN: run OUT: I_RUN"])
    write(tmp_path / "t.txt", ["IN: run OUT: I_RUN", "run: I_RUN"])
    assert load("scan", tmp_path, ("s.txt",)) == {
        "source": ["jump twice", "run"],
        "target": ["I_JUMP I_JUMP", "I_RUN"],
    }
    with pytest.raises(ValueError, match=r"t\.txt:2: expected 'IN: .*got 'run: I_RUN'"):
        load("scan", tmp_path, ("t.txt",))


def test_hold_out_takes_the_last_examples():
    examples = {"source": ["a", "b", "c"], "target": ["x", "y", "z"]}
    train, validation = sources.hold_out(examples, 1)
    assert train == {"source": ["a", "b"], "target": ["x", "y"]}
    assert validation == {"source": ["c"], "target": ["z"]}
    with pytest.raises(ValueError, match="data.validation_size=3: expected 1 to 2"):
        sources.hold_out(examples, 3)


def test_tfds_set_by_name(tmp_path):
    examples = load("tfds", tmp_path, ("train[2:]", "test"), name="toy_translation")
    assert sorted(examples) == ["source", "target"]
    # TFDS shuffles when it prepares, so a pair is known by its number, not by its place.
    assert len(examples["source"]) == 6 and sorted(examples["source"][4:]) == ["test 0", "test 1"]
    for source, target in zip(examples["source"], examples["target"], strict=True):
        assert target == f"straße {source.split()[1]}"
    swapped = load(
        "tfds",
        tmp_path,
        ("test",),
        name="toy_translation:1.0.0",
        source_language="de",
        target_language="en",
    )
    assert sorted(swapped["target"]) == ["test 0", "test 1"]


def test_tfds_set_that_another_process_prepares_first(tmp_path):
    early = ToyTranslation(data_dir=tmp_path)
    sources.read_builder(ToyTranslation(data_dir=tmp_path), ("train",))
    assert len(sources.read_builder(early, ("train",))["count"]) == 6


class ToyArchive(tfds.core.GeneratorBasedBuilder):
    """Comes as a packed folder of parallel files, as the sets of WMT do."""

    VERSION = tfds.core.Version("1.0.0")
    archive: Path

    def _info(self):
        texts = {"en": tfds.features.Text(), "de": tfds.features.Text()}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(texts))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(Path(dl_manager.extract(self.archive)))}

    def _generate_examples(self, folder):
        sides = [(folder / f"corpus.{side}").read_text().splitlines() for side in ("en", "de")]
        for number, (en, de) in enumerate(zip(*sides, strict=True)):
            yield number, {"en": en, "de": de}


def test_tfds_set_in_an_archive_needs_no_tensorflow(tmp_path, monkeypatch):
    write(tmp_path / "corpus.en", ["a house"])
    write(tmp_path / "corpus.de", ["ein Haus"])
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    with tarfile.open(ToyArchive.archive, "w:gz") as archive:
        for name in ("corpus.en", "corpus.de"):
            archive.add(tmp_path / name, name)
    examples = load("tfds", tmp_path / "cache", ("train",), name="toy_archive")
    assert examples == {"source": ["a house"], "target": ["ein Haus"]}
    assert "tensorflow" not in sys.modules


def test_tfds_archive_that_is_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    ToyArchive.archive.write_bytes(b"not an archive")
    with pytest.raises(OSError, match="could not prepare toy_archive/1.0.0"):
        load("tfds", tmp_path / "cache", ("train",), name="toy_archive")


def test_tfds_features_become_plain_python(tmp_path):
    builder = ToyTranslation(data_dir=tmp_path)
    columns = sources.read_builder(builder, ("train",))
    assert sorted(columns["count"]) == [0, 1, 2, 3, 4, 5]
    for tags, count in zip(columns["tags"], columns["count"], strict=True):
        assert tags == ["a", "é"][: count % 3]
        assert type(count) is int


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "needs data.name"),
        ("wmt14_translat/de-en", "no set 'wmt14_translat'; near names: .*wmt14_translate"),
        ("wmt14_translate/de-end", "its configs: .*de-en"),
        ("wmt14_translate/de-en:7.7.7", "config or version"),
        ("mnist", "'mnist' has no language 'en'; its features: image, label"),
    ],
)
def test_tfds_names_that_do_not_work(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        load("tfds", tmp_path, ("train",), name=name)


def test_a_build_that_fails_leaves_no_set_behind(tmp_path, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(ToyTranslation, "_generate_examples", full_disk)
        with pytest.raises(OSError, match="no disk space left to build it.*toy_translation"):
            load("tfds", tmp_path, ("train",), name="toy_translation")
    assert not list(tmp_path.rglob("*.array_record*"))
    assert len(load("tfds", tmp_path, ("train",), name="toy_translation")["source"]) == 6


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("dev",), "dev.*train"),
        (("train[6:]",), "'train.6:.' has no example"),
        ((), "names no split"),
    ],
)
def test_splits_that_do_not_exist_or_are_empty(tmp_path, splits, message):
    with pytest.raises(ValueError, match=message):
        load("tfds", tmp_path, splits, name="toy_translation")


def test_embedded_has_the_columns_of_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sources.EnglishGermanGrammar, "COUNTS", {"train": 20, "validation": 2, "test": 5}
    )
    examples = load("embedded", tmp_path, ("train[:10]", "test"))
    assert {"source", "target", "pronoun"} <= set(examples)
    assert {len(column) for column in examples.values()} == {15}
    assert all(isinstance(text, str) and text for text in examples["source"])
