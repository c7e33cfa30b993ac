"""Where examples come from: what is generated, files in a folder, TFDS's catalogue."""

import bisect
import difflib
import itertools
import re
import shutil
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

# Without h5py, TFDS stops registering its sets before it comes to these, and does not say so.
import tensorflow_datasets.translate  # noqa: F401
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download.util import DownloadError

from transformer_jax.data import bigram, files
from transformer_jax.data.cache import locked
from transformer_jax.data.files import Examples
from transformer_jax.data.grammar import EnglishGermanGrammar

# TFDS unpacks archives through these two functions of TensorFlow; plain ones do for local files.
extractor.tf = types.SimpleNamespace(
    compat=types.SimpleNamespace(as_text=str),
    io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
)

_BLOCK = 16_384  # records read at a time, which bounds what they take beside the columns

# The columns of each objective, and the setting that names the feature which each is read from.
_COLUMNS = {
    "translation": {"source": "source_language", "target": "target_language"},
    "causal_lm": {"text": "text_feature"},
    "masked_lm": {"text": "text_feature"},
    "classification": {"text": "text_feature", "label": "label_feature"},
    "tagging": {"words": "text_feature", "tags": "label_feature"},
}
# The objectives that each source serves.
SERVES = {
    "embedded": tuple(_COLUMNS),
    "bigram_copy": ("causal_lm",),
    "tfds": tuple(_COLUMNS),
    "text": ("translation", "causal_lm", "masked_lm"),
    "scan": ("translation",),
    "tsv": ("classification",),
    "labelled": ("classification",),
    "conll": ("tagging",),
    "conllu": ("tagging",),
}


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Where the examples are. Attributes:

    source: a key of SERVES.
    dir: folder of the files; of all but embedded, bigram_copy and tfds.
    name: name in TFDS's catalogue, such as "wmt14_translate/de-en"; tfds.
    source_language, target_language: endings of parallel files (text), features (tfds).
    text_feature, label_feature: features (embedded, tfds) or columns (tsv; conllu: the label's).
    document_separator: where plain text is cut into documents ("": nowhere); text.
    cache_dir: the embedded corpus and sets of TFDS are prepared here once.
    """

    source: str
    dir: str
    name: str
    source_language: str
    target_language: str
    text_feature: str
    label_feature: str
    document_separator: str
    cache_dir: str


def load(settings: SourceSettings, objective: str, splits: tuple[str, ...]) -> Examples:
    """All examples of the splits, one after the other.

    Args:
        splits: embedded, tfds: TFDS split expressions such as "train[:90%]"; text of translations:
            prefixes P of the pairs P.<source_language>, P.<target_language>; bigram_copy: keys of
            `bigram.SPLITS`; others: files.

    Returns:
        Columns of str: "source", "target" of translation (and the others of the embedded corpus);
        "text", a document each, of causal_lm and masked_lm; "text", "label" of classification.
        Columns of lists of str: "words", "tags" of tagging.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: anything else that is wrong with the input; the message names file and line.
    """
    if not splits:
        raise ValueError("no data to read: data.train (or data.test) names no split or file")
    found = find_files(settings, objective, splits)
    if settings.source in ("embedded", "tfds"):
        return _read_features(settings, objective, splits)
    if settings.source == "bigram_copy":
        return {"text": [bigram.text(split) for split in splits]}
    return concatenate([_read_files(settings, objective, paths) for paths in found])


def find_files(
    settings: SourceSettings, objective: str, splits: tuple[str, ...]
) -> list[tuple[Path, ...]]:
    """The files of each split: two of parallel text, one of other files, none of other sources.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: the source is unknown or does not serve the objective, or dir is empty.
    """
    source, dir = settings.source, settings.dir
    if source not in SERVES:
        raise ValueError(f"data.source={source!r}: expected one of {', '.join(SERVES)}")
    if objective not in SERVES[source]:
        serving = ", ".join(name for name, objectives in SERVES.items() if objective in objectives)
        raise ValueError(
            f"data.source={source!r} has no examples for the objective {objective!r}; "
            f"sources that have: {serving or 'none'}"
        )
    if source in ("embedded", "bigram_copy", "tfds"):
        return []
    if not dir:
        raise ValueError(f"data.source={source!r} needs data.dir, the folder of its files")
    folder = Path(dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"data.dir={dir!r}: there is no such folder")
    sides = ("",)
    if (source, objective) == ("text", "translation"):
        sides = (f".{settings.source_language}", f".{settings.target_language}")
    return [tuple(_find(folder / f"{split}{side}") for side in sides) for split in splits]


def concatenate(parts: Sequence[Examples]) -> Examples:
    """The examples of all parts, which have the same columns."""
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def hold_out(examples: Examples, size: int, objective: str) -> tuple[Examples, Examples]:
    """All but the last `size` examples, and these; of causal_lm and masked_lm characters.

    A document in which the cut falls is divided.

    Raises:
        ValueError: one of the two would be empty.
    """
    is_text = objective in ("causal_lm", "masked_lm")
    total = sum(map(len, examples["text"])) if is_text else len(next(iter(examples.values())))
    if not 0 < size < total:
        raise ValueError(
            f"data.validation_size={size}: expected 1 to {total - 1} of the {total} "
            f"{'characters' if is_text else 'examples'} in data.train"
        )
    if is_text:
        train, held_out = _cut(examples["text"], total - size)
        return {"text": train}, {"text": held_out}
    train = {key: values[:-size] for key, values in examples.items()}
    return train, {key: values[-size:] for key, values in examples.items()}


def _cut(documents: list[str], place: int) -> tuple[list[str], list[str]]:
    """The first `place` characters, at least one, and the others."""
    ends = list(itertools.accumulate(map(len, documents)))
    number = bisect.bisect_left(ends, place)
    document = documents[number]
    place -= ends[number] - len(document)
    rest = [document[place:]] if place < len(document) else []
    return [*documents[:number], document[:place]], [*rest, *documents[number + 1 :]]


def _read_files(settings: SourceSettings, objective: str, paths: tuple[Path, ...]) -> Examples:
    """One split of a source that has its own files."""
    if (settings.source, objective) == ("text", "translation"):
        source, target = paths
        return files.read_pair(source, target)
    (path,) = paths
    match settings.source:
        case "text":
            return files.read_documents(path, settings.document_separator)
        case "scan":
            return files.read_scan(path)
        case "tsv":
            return files.read_table(path, settings.text_feature, settings.label_feature)
        case "labelled":
            return files.read_labelled(path)
        case "conll":
            return files.read_conll(path)
        case _:
            return files.read_conllu(path, settings.label_feature)


def _find(path: Path) -> Path:
    """The file, or where there is none the one with .gz added."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise FileNotFoundError(
            f"{path}: there is no such file, nor {zipped.name} (named by data.train, "
            "data.validation or data.test, in the folder data.dir)"
        )
    return path if path.exists() else zipped


def _read_features(settings: SourceSettings, objective: str, splits: tuple[str, ...]) -> Examples:
    """Examples of the embedded corpus or of a set of TFDS."""
    data_dir = Path(settings.cache_dir).expanduser() / "tfds"
    if settings.source == "tfds":
        builder = catalogue_builder(settings.name, data_dir)
    else:
        builder = EnglishGermanGrammar(data_dir=data_dir)
        if objective == "translation":  # all columns, since scores of "it" need more than two
            return read_builder(builder, splits, list(_features(builder)))
    columns = _COLUMNS[objective]
    names = {column: getattr(settings, key) for column, key in columns.items()}
    features = {
        column: _feature(builder, column, f"data.{key}", names[column])
        for column, key in columns.items()
    }
    read = read_builder(builder, splits, list(names.values()))
    examples = {column: read[name] for column, name in names.items()}
    if objective == "classification":
        return _labelled_texts(examples, features["label"])
    if objective == "tagging":
        return _tagged_words(examples, features["tags"])
    return examples


def _labelled_texts(examples: Examples, feature: Any) -> Examples:
    """The examples that have a label; in the embedded corpus, some sentences have no "it"."""
    labels = [_label(feature, value) for value in examples["label"]]
    texts = [text for text, label in zip(examples["text"], labels, strict=True) if label]
    if not texts:
        raise ValueError(
            "data.label_feature: no example has a label; does data.train, data.validation or "
            "data.test name a split without them?"
        )
    return {"text": texts, "label": [label for label in labels if label]}


def _tagged_words(examples: Examples, feature: Any) -> Examples:
    words = [_items(value) for value in examples["words"]]
    tags = [[_label(feature, tag) for tag in _items(value)] for value in examples["tags"]]
    for number, (row, labels) in enumerate(zip(words, tags, strict=True)):
        if "" in labels:
            raise ValueError(f"data.label_feature: example {number} has a word without a tag")
        if len(row) != len(labels):
            raise ValueError(
                f"data.text_feature and data.label_feature: example {number} has {len(row)} words, "
                f"but {len(labels)} tags"
            )
    return {"words": words, "tags": tags}


def _feature(builder: tfds.core.DatasetBuilder, column: str, key: str, name: str) -> Any:
    """The feature that a column is read from; where it is a list of words or tags, of one of them.

    Raises:
        ValueError: the set has no such feature, or it is neither text nor, for labels, a class.
    """
    features = _features(builder)
    if name not in features:
        raise ValueError(
            f"{key}={name!r}: {builder.info.full_name} has no such feature; its features: "
            f"{', '.join(features) or 'none'}"
        )
    feature: Any = features[name]
    is_list = column in ("words", "tags") and isinstance(feature, tfds.features.Sequence)
    item = feature.feature if is_list else feature
    is_text = isinstance(item, tfds.features.Text)
    is_class = isinstance(item, tfds.features.ClassLabel) or (
        isinstance(item, tfds.features.Tensor)
        and item.shape == ()
        and item.np_dtype in (np.int32, np.int64)
    )
    if not (is_text or (is_class and (column == "label" or (column == "tags" and is_list)))):
        raise ValueError(
            f"{key}={name!r}: this feature of {builder.info.full_name} is {feature}, from which "
            f"{column!r} cannot be read"
        )
    return item


def _features(builder: tfds.core.DatasetBuilder) -> dict[str, Any]:
    features = builder.info.features
    return dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}


def _label(feature: Any, value: Any) -> str:
    """A label's name; "" for the -1 of TFDS, as in SNLI, and in all the test splits of GLUE."""
    if not isinstance(feature, tfds.features.ClassLabel):
        return str(value)
    return feature.int2str(value) if value >= 0 else ""


def _items(value: str | list) -> list:
    """Words or tags, which come in a list or separated by blanks."""
    return [item for item in value.split(" ") if item] if isinstance(value, str) else value


def catalogue_builder(name: str, data_dir: Path) -> tfds.core.DatasetBuilder:
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
    builder: tfds.core.DatasetBuilder, splits: tuple[str, ...], features: Sequence[str]
) -> Examples:
    """These features of the splits, read in bulk; the set is prepared where it is not yet."""
    folder = Path(builder.data_path)
    if not folder.is_dir():
        with locked(folder.parent):
            if not folder.is_dir():  # another process may have prepared it while this one waited
                _prepare(builder, folder)
    # As it lies on the disk: another process may have prepared it since `builder` was made.
    builder = tfds.builder_from_directory(folder)
    parts = []
    for split in splits:
        if not builder.info.splits[split].num_examples:
            raise ValueError(f"{builder.info.full_name}: split {split!r} has no example")
        # pyright does not see the parameters through TFDS's decorators.
        source = builder.as_data_source(split=split)  # pyright: ignore[reportCallIssue]
        for start in range(0, len(source), _BLOCK):
            records = source.__getitems__(range(start, min(start + _BLOCK, len(source))))
            parts.append({key: [_plain(record[key]) for record in records] for key in features})
    return concatenate(parts)


def _prepare(builder: tfds.core.DatasetBuilder, folder: Path) -> None:
    for leftover in folder.parent.glob("incomplete.*"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
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
