import itertools
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import tensorflow_datasets as tfds

from tests.data.toy import ToyTranslation, source_settings
from transformer_jax.data.read import catalogue
from transformer_jax.data.read.examples import Examples, concatenate
from transformer_jax.data.read.sources import LABELLED, PAIRS, TAGGED, TEXTS


def read(columns, folder, splits=("train",), name="toy_translation", **changes) -> Examples:
    settings = source_settings("tfds", folder, name=name, **changes)
    return concatenate(catalogue.read(settings, splits, columns))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder in which the toy set is prepared once."""
    return tmp_path_factory.mktemp("prepared")


def test_a_set_is_found_by_its_name(prepared):
    examples = read(PAIRS, prepared, ("train[2:]", "test"))
    assert list(examples) == ["source", "target"]
    # TFDS shuffles when it prepares, so a pair is known by its number, not by its place.
    assert len(examples["source"]) == 6 and sorted(examples["source"][4:]) == ["test 0", "test 1"]
    for source, target in zip(examples["source"], examples["target"], strict=True):
        assert target == f"straße {source.split()[1]}"
    languages = {"source_language": "de", "target_language": "en"}
    swapped = read(PAIRS, prepared, ("test",), name="toy_translation:1.0.0", **languages)
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
    examples = read(PAIRS, tmp_path, name="toy_archive")
    assert examples == {"source": ["a house"], "target": ["ein Haus"]}
    assert "tensorflow" not in sys.modules


def test_a_broken_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyArchive, "archive", tmp_path / "corpus.tgz", raising=False)
    ToyArchive.archive.write_bytes(b"not an archive")
    with pytest.raises(OSError, match="could not prepare toy_archive/1.0.0"):
        read(PAIRS, tmp_path, name="toy_archive")


def test_texts_classes_and_tags(prepared):
    texts = read(TEXTS, prepared, text_feature="en")
    assert list(texts) == ["text"]
    assert sorted(texts["text"]) == [f"train {i}" for i in range(6)]

    numbers = {f"train {i}": i for i in range(6)}
    for label, names in (("class", ["zero", "one", "two"] * 2), ("count", "012345")):
        examples = read(LABELLED, prepared, text_feature="en", label_feature=label)
        assert list(examples) == ["text", "label"] and len(examples["text"]) == 6
        assert examples["label"] == [names[numbers[text]] for text in examples["text"]]

    examples = read(TAGGED, prepared, text_feature="tags", label_feature="numbers")
    assert sorted(examples["words"]) == sorted([[], ["a"], ["a", "é"]] * 2)
    assert examples["tags"] == [["O", "B-x"][: len(words)] for words in examples["words"]]


@pytest.mark.parametrize(
    ("columns", "text", "label", "message"),
    [
        (TEXTS, "words", "", "data.text_feature='words': toy_.* no such feature; .*, score,"),
        (LABELLED, "en", "label", "data.label_feature='label': .*no such feature"),
        (LABELLED, "en", "score", "'score': .*float32.*'label' cannot be read"),
        (LABELLED, "en", "unlabelled", "no example has a label"),
        (TAGGED, "numbers", "numbers", "data.text_feature='numbers': .*'words' cannot be read"),
        (TAGGED, "en", "tags", "example [0-5] has 2 words, but [012] tags"),
    ],
)
def test_features_that_do_not_fit_the_columns(prepared, columns, text, label, message):
    with pytest.raises(ValueError, match=message):
        read(columns, prepared, text_feature=text, label_feature=label)


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("", "train", "needs data.name"),
        ("wmt14_translat/de-en", "train", "no set 'wmt14_translat'; near names: .*wmt14_translate"),
        ("wmt14_translate/de-end", "train", "its configs: .*de-en"),
        ("wmt14_translate/de-en:7.7.7", "train", "config or version"),
        ("mnist", "train", "language='en': mnist/.* no such feature; its features: image, label"),
        ("toy_translation", "dev", "dev.*train"),
        ("toy_translation", "train[6:]", "'train.6:.' has no example"),
    ],
)
def test_names_and_splits_that_do_not_work(prepared, name, split, message):
    with pytest.raises(ValueError, match=message):
        read(PAIRS, prepared, (split,), name)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "class.labels.txt"])
@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:9])]
)
def test_a_set_that_is_damaged(prepared, tmp_path, name, harm):
    read(LABELLED, prepared, text_feature="en", label_feature="class")
    shutil.copytree(prepared / "cache", tmp_path / "cache")
    (path,) = (tmp_path / "cache/tfds/toy_translation").glob(f"*/{name}")
    harm(path)
    with pytest.raises(ValueError, match=f"1.0.0 is damaged .*{name}.*: delete it"):
        read(LABELLED, tmp_path, ("train[1:3]",), text_feature="en", label_feature="class")
