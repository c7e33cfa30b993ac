import functools
import itertools
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds

from tests.data.toy import ToyTranslation, source_settings
from transformer_jax.data.corpora import grammar
from transformer_jax.data.read import catalogue
from transformer_jax.data.read.examples import Examples, concatenate
from transformer_jax.process import progress


def read(builder_of, reader, folder, splits, **changes) -> Examples:
    settings = source_settings("", folder, **changes)
    return concatenate(reader(builder_of(settings), settings, splits))


read_set = functools.partial(read, catalogue.catalogued)
read_embedded = functools.partial(read, catalogue.embedded)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder in which the toy set is prepared once."""
    return tmp_path_factory.mktemp("prepared")


def toy(reader, folder, splits=("train",), **changes):
    return read_set(reader, folder, splits, **({"name": "toy_translation"} | changes))


def test_a_set_is_found_by_its_name(prepared):
    examples = toy(catalogue.read_pairs, prepared, ("train[2:]", "test"))
    assert list(examples) == ["source", "target"]
    # TFDS shuffles when it prepares, so a pair is known by its number, not by its place.
    assert len(examples["source"]) == 6 and sorted(examples["source"][4:]) == ["test 0", "test 1"]
    for source, target in zip(examples["source"], examples["target"], strict=True):
        assert target == f"straße {source.split()[1]}"
    swapped = toy(
        catalogue.read_pairs,
        prepared,
        ("test",),
        name="toy_translation:1.0.0",
        source_language="de",
        target_language="en",
    )
    assert sorted(swapped["target"]) == ["test 0", "test 1"]


def test_a_set_that_another_process_prepares_first(tmp_path):
    early = ToyTranslation(data_dir=tmp_path)
    concatenate(catalogue.read_builder(ToyTranslation(data_dir=tmp_path), ("train",), ["count"]))
    assert len(concatenate(catalogue.read_builder(early, ("train",), ["count"]))["count"]) == 6


def test_what_has_been_decoded_is_not_decoded_again(tmp_path, monkeypatch):
    """But every choice of splits and of features is one of its own."""
    builder = ToyTranslation(data_dir=tmp_path)
    choices = [(splits, [name]) for splits in (("train",), ("test",)) for name in ("en", "tags")]
    first = [concatenate(catalogue.read_builder(builder, *choice)) for choice in choices]
    assert all(a != b for a, b in itertools.combinations(first, 2))
    monkeypatch.setattr(tfds, "builder_from_directory", lambda folder: pytest.fail("decoded"))
    assert [concatenate(catalogue.read_builder(builder, *choice)) for choice in choices] == first


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


def test_a_set_in_an_archive_needs_no_tensorflow(tmp_path, monkeypatch):
    (tmp_path / "corpus.en").write_text("a house\n")
    (tmp_path / "corpus.de").write_text("ein Haus\n")
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    with tarfile.open(ToyArchive.archive, "w:gz") as archive:
        for name in ("corpus.en", "corpus.de"):
            archive.add(tmp_path / name, name)
    examples = read_set(catalogue.read_pairs, tmp_path, ("train",), name="toy_archive")
    assert examples == {"source": ["a house"], "target": ["ein Haus"]}
    assert "tensorflow" not in sys.modules


def test_a_broken_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    ToyArchive.archive.write_bytes(b"not an archive")
    with pytest.raises(OSError, match="could not prepare toy_archive/1.0.0"):
        read_set(catalogue.read_pairs, tmp_path, ("train",), name="toy_archive")


def test_features_become_plain_python(prepared):
    builder = ToyTranslation(data_dir=prepared / "cache" / "tfds")
    columns = concatenate(catalogue.read_builder(builder, ("train",), ["count", "tags"]))
    assert list(columns) == ["count", "tags"]
    assert sorted(columns["count"]) == [0, 1, 2, 3, 4, 5]
    for tags, count in zip(columns["tags"], columns["count"], strict=True):
        assert tags == ["a", "é"][: count % 3]
        assert type(count) is int


def test_texts_classes_and_tags(prepared):
    texts = toy(catalogue.read_texts, prepared, text_feature="en")
    assert list(texts) == ["text"]
    assert sorted(texts["text"]) == [f"train {i}" for i in range(6)]

    numbers = {f"train {i}": i for i in range(6)}
    for label, names in (("class", ["zero", "one", "two"] * 2), ("count", "012345")):
        features = dict(text_feature="en", label_feature=label)
        found = toy(catalogue.read_labelled, prepared, **features)
        assert list(found) == ["text", "label"] and len(found["text"]) == 6
        assert found["label"] == [names[numbers[text]] for text in found["text"]]

    features = dict(text_feature="tags", label_feature="numbers")
    found = toy(catalogue.read_tagged, prepared, **features)
    assert sorted(found["words"]) == sorted([[], ["a"], ["a", "é"]] * 2)
    assert found["tags"] == [["O", "B-x"][: len(words)] for words in found["words"]]


@pytest.mark.parametrize(
    ("reader", "text", "label", "message"),
    [
        ("texts", "words", "", "data.text_feature='words': toy_.* no such feature; .*, score,"),
        ("texts", "tags", "", "data.text_feature='tags': .*Sequence.*'text' cannot be read"),
        ("labelled", "en", "label", "data.label_feature='label': .*no such feature"),
        ("labelled", "en", "score", "'score': .*float32.*'label' cannot be read"),
        ("labelled", "en", "tags", "'tags': .*Sequence.*'label' cannot be read"),
        ("labelled", "class", "class", "data.text_feature='class': .*'text' cannot be read"),
        ("labelled", "en", "unlabelled", "no example has a label"),
        ("tagged", "numbers", "numbers", "data.text_feature='numbers': .*'words' cannot be read"),
        ("tagged", "tags", "class", "'class': .*ClassLabel.*'tags' cannot be read"),
        ("tagged", "en", "tags", "example [0-5] has 2 words, but [012] tags"),
    ],
)
def test_features_that_do_not_fit_the_columns(prepared, reader, text, label, message):
    features = dict(text_feature=text, label_feature=label)
    with pytest.raises(ValueError, match=message):
        toy(getattr(catalogue, f"read_{reader}"), prepared, **features)


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
def test_names_that_do_not_work(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        toy(catalogue.read_pairs, tmp_path, name=name)


def test_a_build_that_fails_leaves_no_set_behind(tmp_path, monkeypatch):
    def full_disk(*args):
        raise OSError(28, "No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(ToyTranslation, "_generate_examples", full_disk)
        with pytest.raises(OSError, match="no disk space left to build it.*toy_translation"):
            toy(catalogue.read_pairs, tmp_path)
    assert not list(tmp_path.rglob("*.array_record*"))
    assert len(toy(catalogue.read_pairs, tmp_path)["source"]) == 6


@pytest.mark.parametrize(
    ("splits", "message"),
    [(("dev",), "dev.*train"), (("train[6:]",), "'train.6:.' has no example")],
)
def test_splits_that_do_not_exist_or_are_empty(prepared, splits, message):
    with pytest.raises(ValueError, match=message):
        toy(catalogue.read_pairs, prepared, splits)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder for a small embedded corpus."""
    with pytest.MonkeyPatch.context() as patch:
        counts = {"train": 20, "validation": 2, "test": 5}
        patch.setattr(catalogue.EnglishGermanGrammar, "COUNTS", counts)
        yield tmp_path_factory.mktemp("corpus")


def test_all_columns_of_the_embedded_corpus_are_read(corpus):
    examples = read_embedded(catalogue.read_embedded_pairs, corpus, ("train[:10]", "test"))
    assert {"source", "target", "pronoun"} <= set(examples)
    assert {len(column) for column in examples.values()} == {15}
    assert all(isinstance(text, str) and text for text in examples["source"])


def test_split_expressions_of_the_embedded_corpus(tmp_path, monkeypatch):
    counts = {"train": 20, "validation": 2, "test": 5}
    monkeypatch.setattr(catalogue.EnglishGermanGrammar, "COUNTS", counts)
    monkeypatch.setattr(catalogue, "_BLOCK", 3)
    made = {split: list(grammar.examples(split, count)) for split, count in counts.items()}
    train, test = made["train"], made["test"]
    for splits, expected in (
        (("train",), train),
        (("train[5:10]+test[:-2]", "train[-5%:]"), [*train[5:10], *test[:3], train[-1]]),
        (("test", "validation"), test + made["validation"]),
    ):
        found = read_embedded(catalogue.read_embedded_pairs, tmp_path, splits)
        assert found == {name: [example[name] for example in expected] for name in train[0]}
    with pytest.raises(ValueError, match=r"english_german_grammar.*'train\[:0\]' has no example"):
        read_embedded(catalogue.read_embedded_pairs, tmp_path, ("train[:0]",))
    with pytest.raises(ValueError, match="Unknown split 'dev'.*validation"):
        read_embedded(catalogue.read_embedded_pairs, tmp_path, ("dev",))


def test_the_embedded_corpus_has_texts_labels_and_tags(corpus):
    def embedded(reader, label=""):
        features: dict[str, Any] = dict(text_feature="source", label_feature=label)
        return read_embedded(reader, corpus, ("train", "test"), **features)

    whole = embedded(catalogue.read_embedded_pairs)
    assert embedded(catalogue.read_texts) == {"text": whole["source"]}

    rows = zip(whole["source"], whole["antecedent"], strict=True)
    rows = [(source, antecedent) for source, antecedent in rows if antecedent]
    assert 5 < len(rows) < 25  # some sentences have no "it", and those of test all have
    found = embedded(catalogue.read_labelled, "antecedent")
    assert list(zip(found["text"], found["label"], strict=True)) == rows

    found = embedded(catalogue.read_tagged, "tags")
    assert [" ".join(words) for words in found["words"]] == whole["source"]
    assert [" ".join(tags) for tags in found["tags"]] == whole["tags"]
    with pytest.raises(ValueError, match="example 0 has .* words, but [01] tags"):
        embedded(catalogue.read_tagged, "antecedent")
    with pytest.raises(ValueError, match="data.label_feature='gender': .*its features: .*pronoun"):
        embedded(catalogue.read_labelled, "gender")


def test_labels_that_no_example_has(tmp_path, monkeypatch):
    counts = {"train": 1, "validation": 1, "test": 1}
    monkeypatch.setattr(catalogue.EnglishGermanGrammar, "COUNTS", counts)
    features = dict(text_feature="source", label_feature="antecedent")
    whole = read_embedded(catalogue.read_embedded_pairs, tmp_path, ("train",))
    assert whole["antecedent"] == [""]
    with pytest.raises(ValueError, match="data.label_feature: no example has a label"):
        read_embedded(catalogue.read_labelled, tmp_path, ("train",), **features)


def test_generating_the_corpus_does_not_speak_of_downloads(tmp_path, monkeypatch, capfd):
    counts = {"train": 3, "validation": 1, "test": 1}
    monkeypatch.setattr(catalogue.EnglishGermanGrammar, "COUNTS", counts)
    monkeypatch.setattr(progress, "FIRST_SECONDS", float("inf"))
    read_embedded(catalogue.read_embedded_pairs, tmp_path, ("train",))
    assert capfd.readouterr() == ("", "")
