"""Sets of TFDS's catalogue and the embedded corpus: from features to columns."""

import difflib
import functools
import itertools
import json
import re
import shutil
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tensorflow_datasets as tfds

# Without h5py, TFDS stops registering its sets before it comes to these, and does not say so.
import tensorflow_datasets.translate  # noqa: F401
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download.util import DownloadError

from transformer_jax.data.cache import build_once, fingerprint, locked
from transformer_jax.data.corpora.grammar import EnglishGermanGrammar, corpus
from transformer_jax.data.read.examples import Examples, SourceSettings
from transformer_jax.process import progress

# TFDS unpacks archives through these two functions of TensorFlow; plain ones do for local files.
extractor.tf = types.SimpleNamespace(
    compat=types.SimpleNamespace(as_text=str),
    io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
)

_BLOCK = 16_384  # records read at a time, which bounds what they take besides the columns
_FILE = "columns.jsonl"

Builder = tfds.core.DatasetBuilder


def embedded(settings: SourceSettings) -> Builder:
    """The builder of the generated English-German corpus."""
    return EnglishGermanGrammar(data_dir=_folder(settings))


def catalogued(settings: SourceSettings) -> Builder:
    """The builder of the set of TFDS called `settings.name`. Raises as `catalogue_builder`."""
    return catalogue_builder(settings.name, _folder(settings))


def _folder(settings: SourceSettings) -> Path:
    return Path(settings.cache_dir).expanduser() / "tfds"


def version(builder: Builder) -> str:
    """The set's name, config and version."""
    return builder.info.full_name


def read_embedded_pairs(
    builder: Builder, settings: SourceSettings, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """Two features of the embedded corpus as "source" and "target": "en", "de" or others by name.

    Sentences in which one of the two is empty are left out. Of English-German pairs all other
    features come too, since some scores need them.
    """
    columns = ("source", "target")
    given = [getattr(settings, f"{column}_language") for column in columns]
    features = list(_features(builder))
    if given == ["en", "de"]:
        yield from read_builder(builder, splits, features)
        return
    languages = {"en": "source", "de": "target"}
    names = [str(languages.get(name, name)) for name in given]
    for column, name in zip(columns, names, strict=True):
        _feature(builder, column, f"data.{column}_language", name)
    for block in read_builder(builder, splits, features):
        pairs = zip(*(block[name] for name in names), strict=True)
        if rows := [pair for pair in pairs if all(pair)]:
            yield dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))


def read_pairs(
    builder: Builder, settings: SourceSettings, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """The features named by the two languages, as "source" and "target"."""
    names = {"source": settings.source_language, "target": settings.target_language}
    for column, name in names.items():
        _feature(builder, column, f"data.{column}_language", name)
    return _read(builder, names, splits)


def read_texts(
    builder: Builder, settings: SourceSettings, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """The feature named by data.text_feature, as "text"."""
    _feature(builder, "text", "data.text_feature", settings.text_feature)
    return _read(builder, {"text": settings.text_feature}, splits)


def read_labelled(
    builder: Builder, settings: SourceSettings, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """The "text" and "label" of the examples that have a label.

    Some sentences of the embedded corpus have no "it", and some test splits of GLUE no labels.

    Raises:
        ValueError: no example has a label.
    """
    _feature(builder, "text", "data.text_feature", settings.text_feature)
    feature = _feature(builder, "label", "data.label_feature", settings.label_feature, labels=True)
    names = {"text": settings.text_feature, "label": settings.label_feature}
    found = False
    for block in _read(builder, names, splits):
        labels = [_label(feature, value) for value in block["label"]]
        texts = [text for text, label in zip(block["text"], labels, strict=True) if label]
        if texts:
            found = True
            yield {"text": texts, "label": [label for label in labels if label]}
    if not found:
        raise ValueError(
            "data.label_feature: no example has a label; does data.train, data.validation or "
            "data.test name a split without them?"
        )


def read_tagged(
    builder: Builder, settings: SourceSettings, splits: tuple[str, ...]
) -> Iterator[Examples]:
    """The "words" and "tags" of sentences, in lists or separated by blanks.

    Raises:
        ValueError: a word without a tag, or not as many tags as words.
    """
    _feature(builder, "words", "data.text_feature", settings.text_feature, listed=True)
    feature = _feature(
        builder, "tags", "data.label_feature", settings.label_feature, labels=True, listed=True
    )
    names = {"words": settings.text_feature, "tags": settings.label_feature}
    number = 0
    for block in _read(builder, names, splits):
        words = [_items(value) for value in block["words"]]
        tags = [[_label(feature, tag) for tag in _items(value)] for value in block["tags"]]
        for row, labels in zip(words, tags, strict=True):
            if "" in labels:
                raise ValueError(f"data.label_feature: example {number} has a word without a tag")
            if len(row) != len(labels):
                raise ValueError(
                    f"data.text_feature and data.label_feature: example {number} has {len(row)} "
                    f"words, but {len(labels)} tags"
                )
            number += 1
        yield {"words": words, "tags": tags}


def _read(
    builder: Builder, names: Mapping[str, str], splits: tuple[str, ...]
) -> Iterator[Examples]:
    """Columns by the names of their features."""
    for found in read_builder(builder, splits, list(names.values())):
        yield {column: found[name] for column, name in names.items()}


def _feature(
    builder: Builder,
    column: str,
    key: str,
    name: str,
    *,
    labels: bool = False,
    listed: bool = False,
) -> Any:
    """The feature that a column is read from; where it is a list, the feature of its items.

    Args:
        labels: whether it may be a class instead of a text (a tag: only in a list).
        listed: whether it may be a list.

    Raises:
        ValueError: the set has no such feature, or it is of another kind.
    """
    features = _features(builder)
    if name not in features:
        raise ValueError(
            f"{key}={name!r}: {builder.info.full_name} has no such feature; its features: "
            f"{', '.join(features) or 'none'}"
        )
    feature: Any = features[name]
    is_list = listed and isinstance(feature, tfds.features.Sequence)
    item = feature.feature if is_list else feature
    is_text = isinstance(item, tfds.features.Text)
    is_class = isinstance(item, tfds.features.ClassLabel) or (
        isinstance(item, tfds.features.Tensor)
        and item.shape == ()
        and item.np_dtype in (np.int32, np.int64)
    )
    if not (is_text or (is_class and labels and is_list == listed)):
        raise ValueError(
            f"{key}={name!r}: this feature of {builder.info.full_name} is {feature}, from which "
            f"{column!r} cannot be read"
        )
    return item


def _features(builder: Builder) -> dict[str, Any]:
    features = builder.info.features
    return dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}


def _label(feature: Any, value: Any) -> str:
    """A label's name; "" for the -1 that TFDS has in SNLI and in all the test splits of GLUE."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return str(value)
    return feature.int2str(value) if value >= 0 else ""


def _items(value: str | list) -> list:
    """Words or tags, which come in a list or separated by blanks."""
    return [item for item in value.split(" ") if item] if isinstance(value, str) else value


def catalogue_builder(name: str, data_dir: Path) -> Builder:
    """The builder of a set of TFDS, by its name; nothing is downloaded yet.

    Raises:
        ValueError: TFDS has no such set, config or version.
    """
    if not name:
        raise ValueError(
            "data.source='tfds' needs data.name, a name of TFDS such as 'wmt14_translate/de-en'"
        )
    base = re.split("[/:]", name)[0]
    known = tfds.list_builders(with_community_datasets=False)
    if base not in known:
        near = ", ".join(difflib.get_close_matches(base, known, n=5)) or "none"
        raise ValueError(f"data.name={name!r}: TFDS has no set {base!r}; near names: {near}")
    try:
        return tfds.builder(name, data_dir=data_dir)
    except (ValueError, AssertionError) as error:  # what TFDS raises for a config and a version
        configs = ", ".join(tfds.builder_cls(base).builder_configs) or "none"
        raise ValueError(
            f"data.name={name!r}: TFDS has {base!r}, but not this config or version; its configs: "
            f"{configs}"
        ) from error


def read_builder(
    builder: Builder, splits: tuple[str, ...], features: Sequence[str]
) -> Iterator[Examples]:
    """Yields these features of the splits in blocks; the set is prepared where it is not yet."""
    folder = Path(builder.data_path)
    if isinstance(builder, EnglishGermanGrammar):
        # Not prepared: TFDS takes four times as long to write and decode them as it takes to make
        # them.
        write = functools.partial(_generate, builder)
        columns = folder.parent / "columns" / fingerprint(str(builder.version), splits, features)
    else:
        if not folder.is_dir():
            with locked(folder.parent):
                if not folder.is_dir():  # another process may have prepared it in the meantime
                    _prepare(builder, folder)
        # TFDS takes so long to decode an example that what it has decoded is kept, in the set's
        # folder.
        write = functools.partial(_decode, folder)
        columns = folder / "columns" / fingerprint(splits, features)
    build_once(columns, lambda temporary: write(splits, features, temporary / _FILE))
    with (columns / _FILE).open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _generate(
    builder: EnglishGermanGrammar, splits: tuple[str, ...], features: Sequence[str], path: Path
) -> None:
    """Writes these features of the embedded corpus, as `_decode` those of other sets."""
    infos = {
        name: tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=0)
        for name, count in builder.COUNTS.items()
    }
    with (
        progress.phase("Generating the English-German corpus"),
        path.open("w", encoding="utf-8") as file,
    ):
        for split in splits:
            found = 0
            for part in tfds.core.ReadInstruction.from_spec(split).to_absolute(infos):
                examples = corpus.examples(part.splitname, builder.COUNTS[part.splitname])
                examples = itertools.islice(examples, part.from_, part.to)
                while records := list(itertools.islice(examples, _BLOCK)):
                    _write_block(records, features, file)
                    found += len(records)
            if not found:
                raise _no_example(builder, split)


def _decode(folder: Path, splits: tuple[str, ...], features: Sequence[str], path: Path) -> None:
    """Writes these features of a prepared set: a JSON object of columns for each block."""
    # As it lies on the disk: another process may have prepared it since its builder was made.
    builder = tfds.builder_from_directory(folder)
    with path.open("w", encoding="utf-8") as file:
        for split in splits:
            if not builder.info.splits[split].num_examples:
                raise _no_example(builder, split)
            # pyright does not see the parameters through TFDS's decorators.
            source = builder.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
            for start in range(0, len(source), _BLOCK):
                records = source.__getitems__(range(start, min(start + _BLOCK, len(source))))
                _write_block(records, features, file)


def _write_block(
    records: Sequence[Mapping[str, Any]], features: Sequence[str], file: TextIO
) -> None:
    block = {name: [_plain(record[name]) for record in records] for name in features}
    file.write(json.dumps(block) + "\n")


def _no_example(builder: Builder, split: str) -> ValueError:
    return ValueError(f"{builder.info.full_name}: split {split!r} has no example")


def _prepare(builder: Builder, folder: Path) -> None:
    for leftover in folder.parent.glob("incomplete.*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    # TFDS shows how a download goes.
    try:
        builder.download_and_prepare(
            file_format="array_record",  # the one format that needs no TensorFlow
            # What lies on GCS is in another format.
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
        )
    except (DownloadError, extractor.ExtractError) as error:
        name = builder.info.full_name
        raise OSError(f"data.name: TFDS could not prepare {name}: {error}") from error


def _plain(value: Any) -> Any:
    """What TFDS decodes (bytes, NumPy) as str, numbers and lists."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return [_plain(v) for v in value] if isinstance(value, list) else value
