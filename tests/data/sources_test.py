import gzip
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs import default
from transformer_jax.data import bigram, sources
from transformer_jax.data.sources import SourceSettings

ENGLISH = ["a cat .", "", "two dogs\u2028run \x85 .", "  blanks  "]
GERMAN = ["eine katze .", "leer", "zwei hunde\u00a0.", "x"]


class ToyTranslation(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "en": tfds.features.Text(),
            "de": tfds.features.Text(),
            "tags": tfds.features.Sequence(tfds.features.Text()),
            "numbers": tfds.features.Sequence(tfds.features.ClassLabel(names=["O", "B-x"])),
            "class": tfds.features.ClassLabel(names=["zero", "one", "two"]),
            "unlabelled": tfds.features.ClassLabel(names=["a"]),
            "score": tfds.features.Scalar(dtype=np.float32),
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
                    "numbers": [0, 1][: i % 3],
                    "class": i % 3,
                    "unlabelled": -1,
                    "score": i / 2,
                    "count": i,
                },
            )


def settings(source, tmp_path, **changes) -> SourceSettings:
    arguments: dict[str, Any] = dict(
        source=source,
        dir=str(tmp_path),
        name="",
        source_language="en",
        target_language="de",
        text_feature="text",
        label_feature="label",
        document_separator="\n",
        cache_dir=str(tmp_path / "cache"),
    )
    return SourceSettings(**(arguments | changes))


def load(source, tmp_path, splits, objective="translation", **changes) -> sources.Examples:
    return sources.load(settings(source, tmp_path, **changes), objective, splits)


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
    with pytest.raises(ValueError, match="data.source='txt': expected one of embedded, .*, text"):
        load("txt", tmp_path, ("a",))


def test_scan_lines(tmp_path):
    write(tmp_path / "s.txt.gz", ["IN: jump twice OUT: I_JUMP I_JUMP", "IN: run OUT: I_RUN"])
    write(tmp_path / "t.txt", ["IN: run OUT: I_RUN", "run: I_RUN"])
    assert load("scan", tmp_path, ("s.txt",)) == {
        "source": ["jump twice", "run"],
        "target": ["I_JUMP I_JUMP", "I_RUN"],
    }
    with pytest.raises(ValueError, match=r"t\.txt:2: expected 'IN: .*got 'run: I_RUN'"):
        load("scan", tmp_path, ("t.txt",))


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm"])
def test_plain_text_is_documents(tmp_path, objective):
    write(tmp_path / "a.txt", ["one", "", "two"])
    write(tmp_path / "b.txt.gz", ["three"])
    found = load("text", tmp_path, ("a.txt", "b.txt"), objective)
    assert found == {"text": ["one", "two", "three"]}
    found = load("text", tmp_path, ("a.txt", "b.txt"), objective, document_separator="")
    assert found == {"text": ["one\n\ntwo\n", "three\n"]}


def test_labelled_texts_and_tagged_words_of_files(tmp_path):
    write(tmp_path / "a.tsv", ["text\tlabel", "a b\tc"])
    write(tmp_path / "b.tsv.gz", ["label\ttext", "d\te f"])
    found = load("tsv", tmp_path, ("a.tsv", "b.tsv"), "classification")
    assert found == {"text": ["a b", "e f"], "label": ["c", "d"]}
    write(tmp_path / "labelled", ["c a b"])
    found = load("labelled", tmp_path, ("labelled", "labelled"), "classification")
    assert found == {"text": ["a b", "a b"], "label": ["c", "c"]}
    write(tmp_path / "conll", ["a\tO", "b\tB-x"])
    expected = {"words": [["a", "b"]], "tags": [["O", "B-x"]]}
    assert load("conll", tmp_path, ("conll",), "tagging") == expected
    write(tmp_path / "conllu", ["1\ta\t_\tX" + "\t_" * 6])
    found = load("conllu", tmp_path, ("conllu",), "tagging", label_feature="upos")
    assert found == {"words": [["a"]], "tags": [["X"]]}


@pytest.mark.parametrize("objective", sources.SERVES["tfds"])
def test_a_source_that_does_not_serve_the_objective(tmp_path, objective):
    serving = [name for name, objectives in sources.SERVES.items() if objective in objectives]
    for source in set(sources.SERVES) - set(serving):
        with pytest.raises(ValueError, match=f"'{objective}'; .*: {', '.join(serving)}$"):
            sources.find_files(settings(source, tmp_path), objective, ("train",))
    for source in serving:  # which then asks for its files, if it has any
        write(tmp_path / "train", ["x"])
        try:
            sources.find_files(settings(source, tmp_path), objective, ("train",))
        except FileNotFoundError as error:
            assert (source, objective) == ("text", "translation") and "train.en" in str(error)


def test_the_sources_of_the_config_are_those_that_there_are():
    assert set(default.CHOICES["data.source"]) == set(sources.SERVES)
    assert set(default.CHOICES["task.name"]) == set(sources.SERVES["tfds"])


def test_hold_out_takes_the_last_examples():
    examples = {"source": ["a", "b", "c"], "target": ["x", "y", "z"]}
    train, validation = sources.hold_out(examples, 1, "translation")
    assert train == {"source": ["a", "b"], "target": ["x", "y"]}
    assert validation == {"source": ["c"], "target": ["z"]}
    with pytest.raises(ValueError, match="data.validation_size=3: expected 1 to 2 of the 3 exam"):
        sources.hold_out(examples, 3, "translation")
    labelled = {"text": ["abc", "def"], "label": ["x", "y"]}
    train, validation = sources.hold_out(labelled, 1, "classification")
    assert train == {"text": ["abc"], "label": ["x"]}
    assert validation == {"text": ["def"], "label": ["y"]}


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm"])
def test_hold_out_takes_the_last_characters_of_documents(objective):
    documents = ["ab", "c", "\u00e4\nfg", "h"]
    for size in range(1, 8):
        train, held_out = sources.hold_out({"text": documents}, size, objective)
        assert "".join(train["text"] + held_out["text"]) == "".join(documents)
        assert len("".join(held_out["text"])) == size
        # At most one document is in two parts, and no part is empty.
        assert len(train["text"]) + len(held_out["text"]) <= len(documents) + 1
        assert all(train["text"] + held_out["text"])
    whole = sources.hold_out({"text": documents}, 5, objective)
    assert whole == ({"text": ["ab", "c"]}, {"text": documents[2:]})
    for size in (0, 8, -1):
        with pytest.raises(ValueError, match="expected 1 to 7 of the 8 characters in data.train"):
            sources.hold_out({"text": documents}, size, objective)


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
    sources.read_builder(ToyTranslation(data_dir=tmp_path), ("train",), ["count"])
    assert len(sources.read_builder(early, ("train",), ["count"])["count"]) == 6


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
    columns = sources.read_builder(builder, ("train",), ["count", "tags"])
    assert list(columns) == ["count", "tags"]
    assert sorted(columns["count"]) == [0, 1, 2, 3, 4, 5]
    for tags, count in zip(columns["tags"], columns["count"], strict=True):
        assert tags == ["a", "é"][: count % 3]
        assert type(count) is int


def test_tfds_text_classes_and_tags(tmp_path):
    def toy(objective, **changes):
        return load("tfds", tmp_path, ("train",), objective, name="toy_translation", **changes)

    texts = toy("masked_lm", text_feature="en")
    assert texts == toy("causal_lm", text_feature="en") and list(texts) == ["text"]
    assert sorted(texts["text"]) == [f"train {i}" for i in range(6)]

    numbers = {"train 0": 0, "train 1": 1, "train 2": 2, "train 3": 3, "train 4": 4, "train 5": 5}
    for label, names in (("class", ["zero", "one", "two"] * 2), ("count", "012345")):
        found = toy("classification", text_feature="en", label_feature=label)
        assert list(found) == ["text", "label"] and len(found["text"]) == 6
        assert found["label"] == [names[numbers[text]] for text in found["text"]]

    found = toy("tagging", text_feature="tags", label_feature="numbers")
    assert sorted(found["words"]) == sorted([[], ["a"], ["a", "é"]] * 2)
    assert found["tags"] == [["O", "B-x"][: len(words)] for words in found["words"]]


@pytest.mark.parametrize(
    ("objective", "text", "label", "message"),
    [
        ("causal_lm", "words", "", "data.text_feature='words': toy_.* no such feature; .*, score,"),
        ("causal_lm", "tags", "", "data.text_feature='tags': .*Sequence.*'text' cannot be read"),
        ("classification", "en", "label", "data.label_feature='label': .*no such feature"),
        ("classification", "en", "score", "'score': .*float32.*'label' cannot be read"),
        ("classification", "en", "tags", "'tags': .*Sequence.*'label' cannot be read"),
        ("classification", "class", "class", "data.text_feature='class': .*'text' cannot be read"),
        ("classification", "en", "unlabelled", "no example has a label"),
        ("tagging", "tags", "class", "'class': .*ClassLabel.*'tags' cannot be read"),
        ("tagging", "en", "tags", "example [0-5] has 2 words, but [012] tags"),
    ],
)
def test_tfds_features_that_do_not_fit_the_objective(tmp_path, objective, text, label, message):
    features = dict(name="toy_translation", text_feature=text, label_feature=label)
    with pytest.raises(ValueError, match=message):
        load("tfds", tmp_path, ("train",), objective, **features)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "needs data.name"),
        ("wmt14_translat/de-en", "no set 'wmt14_translat'; near names: .*wmt14_translate"),
        ("wmt14_translate/de-end", "its configs: .*de-en"),
        ("wmt14_translate/de-en:7.7.7", "config or version"),
        ("mnist", "source_language='en': mnist/.* no such feature; its features: image, label"),
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


@pytest.fixture
def small_corpus(monkeypatch):
    counts = {"train": 20, "validation": 2, "test": 5}
    monkeypatch.setattr(sources.EnglishGermanGrammar, "COUNTS", counts)


def test_embedded_has_the_columns_of_the_corpus(tmp_path, small_corpus):
    examples = load("embedded", tmp_path, ("train[:10]", "test"))
    assert {"source", "target", "pronoun"} <= set(examples)
    assert {len(column) for column in examples.values()} == {15}
    assert all(isinstance(text, str) and text for text in examples["source"])


def test_embedded_serves_every_objective(tmp_path, small_corpus):
    def embedded(objective, label=""):
        features = dict(text_feature="source", label_feature=label)
        return load("embedded", tmp_path, ("train", "test"), objective, **features)

    corpus = load("embedded", tmp_path, ("train", "test"))
    assert embedded("causal_lm") == embedded("masked_lm") == {"text": corpus["source"]}

    rows = zip(corpus["source"], corpus["antecedent"], strict=True)
    rows = [(source, antecedent) for source, antecedent in rows if antecedent]
    assert 5 < len(rows) < 25  # some sentences have no "it", and those of test all have
    found = embedded("classification", "antecedent")
    assert list(zip(found["text"], found["label"], strict=True)) == rows

    found = embedded("tagging", "tags")
    assert [" ".join(words) for words in found["words"]] == corpus["source"]
    assert [" ".join(tags) for tags in found["tags"]] == corpus["tags"]
    with pytest.raises(ValueError, match="example 0 has .* words, but [01] tags"):
        embedded("tagging", "antecedent")
    with pytest.raises(ValueError, match="data.label_feature='gender': .*its features: .*pronoun"):
        embedded("classification", "gender")


def test_labels_that_no_example_has(tmp_path, monkeypatch):
    counts = {"train": 1, "validation": 1, "test": 1}
    monkeypatch.setattr(sources.EnglishGermanGrammar, "COUNTS", counts)
    features = dict(text_feature="source", label_feature="antecedent")
    assert load("embedded", tmp_path, ("train",))["antecedent"] == [""]
    with pytest.raises(ValueError, match="data.label_feature: no example has a label"):
        load("embedded", tmp_path, ("train",), "classification", **features)


def test_bigram_copy_is_a_document_a_split_and_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(bigram, "SPLITS", {"train": 3, "validation": 1, "test": 2})
    found = load("bigram_copy", tmp_path / "nowhere", ("train", "test"), "causal_lm", dir="")
    assert [len(text.split()) for text in found["text"]] == [3 * 32 - 1, 2 * 32 - 1]
    assert found["text"] == [bigram.text("train"), bigram.text("test")]
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no split 'train.txt', which data.train.*train, valid"):
        load("bigram_copy", tmp_path, ("train.txt",), "causal_lm")
    with pytest.raises(ValueError, match="'bigram_copy' has no examples for the objective 'masked"):
        load("bigram_copy", tmp_path, ("train",), "masked_lm")
