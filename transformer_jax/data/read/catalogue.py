"""Sets of TFDS's catalogue: from features to columns."""

import difflib
import re
import shutil
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

# Without h5py, TFDS stops registering its sets before it comes to these, and does not say so.
import tensorflow_datasets.translate  # noqa: F401
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download.util import DownloadError

from transformer_jax.data.cache import damage, fingerprint, locked
from transformer_jax.data.read.boxes import CROWD, DIFFICULT
from transformer_jax.data.read.examples import Examples, Picture, SourceSettings, gathered
from transformer_jax.data.read.features import BLOCK, KEYS, built_once, columns_of
from transformer_jax.data.read.images import size_of
from transformer_jax.runs import manifest

# TFDS unpacks archives through these two functions of TensorFlow; plain ones do for local files.
extractor.tf = types.SimpleNamespace(
    compat=types.SimpleNamespace(as_text=str),
    io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
)

_PICTURES = 256  # images read at a time

Builder = tfds.core.DatasetBuilder


def version(settings: SourceSettings) -> str:
    """The set's name, config and version. Raises as `find_builder`."""
    return find_builder(settings).info.full_name


def read(
    settings: SourceSettings, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[Examples]:
    """The columns of a set, in blocks.

    Raises:
        ValueError: there is no such set, split or feature, a feature is of a kind that its column
            does not have, a split is empty, or as `features.columns_of`.
        OSError: TFDS could not prepare the set.
    """
    builder = find_builder(settings)
    names = [getattr(settings, KEYS[column]) for column in columns]
    for column, name in zip(columns, names, strict=True):
        _check_feature(builder, column, name)
    blocks = read_builder(builder, splits, names, pictures=columns[0] == "image")
    if columns[-1] in ("label", "tags"):
        name, feature = names[-1], _features(builder)[names[-1]]
        # Names in place of the numbers of classes.
        blocks = (b | {name: [_class(feature, value) for value in b[name]]} for b in blocks)
    return columns_of(blocks, columns, names)


def read_boxes(
    settings: SourceSettings, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[Examples]:
    """Images and the boxes in them: `label_feature` names the feature that holds the objects.

    Raises as `read`, where objects have no "bbox" and "label".
    """
    builder, image, name = find_builder(settings), settings.text_feature, settings.label_feature
    _check_feature(builder, "image", image)
    objects = getattr(_features(builder).get(name), "feature", None)
    if not isinstance(objects, tfds.features.FeaturesDict) or not {"bbox", "label"} <= {*objects}:
        raise ValueError(
            f"data.label_feature={name!r}: {builder.info.full_name} has no such feature with a "
            f"'bbox' and a 'label' of each object; its features: {', '.join(_features(builder))}"
        )
    for block in read_builder(builder, splits, (image, name), pictures=True):
        pairs = zip(block[image], block[name], strict=True)
        yield from gathered(columns, (_boxed(*pair, objects["label"]) for pair in pairs))


def _boxed(picture: Picture, objects: dict[str, list], label: Any) -> tuple:
    """A row of BOXED. Corners are shares of the image's sides, y before x."""
    rows, columns = size_of(picture)
    none = [False] * len(objects["bbox"])
    flags = [objects.get(key, none) for key in ("is_crowd", "is_difficult")]
    boxes = []
    for number, (y0, x0, y1, x1) in enumerate(objects["bbox"]):
        low, high = (x0 * columns, y0 * rows), (x1 * columns, y1 * rows)
        area = (high[0] - low[0]) * (high[1] - low[1])
        crowd, difficult = (bool(column[number]) for column in flags)
        boxes.append([*low, *high, area, CROWD * crowd or DIFFICULT * difficult])
    return picture, [rows, columns], boxes, [_class(label, value) for value in objects["label"]]


def _class(feature: Any, value: Any) -> str | list:
    """A class's name; "" for the -1 that TFDS has in SNLI and in all the test splits of GLUE."""
    if isinstance(value, list):
        return [_class(feature.feature, item) for item in value]
    if not isinstance(feature, tfds.features.ClassLabel):
        return str(value)
    return feature.int2str(value) if value >= 0 else ""


def _check_feature(builder: Builder, column: str, name: str) -> None:
    """Raises ValueError where there is no such feature, or the column cannot be read from it."""
    key, info, features = KEYS[column], builder.info, _features(builder)
    if name not in features:
        raise ValueError(
            f"data.{key}={name!r}: {info.full_name} has no such feature; its features: "
            f"{', '.join(features) or 'none'}"
        )
    feature = features[name]
    is_list = column in ("words", "tags") and isinstance(feature, tfds.features.Sequence)
    if column == "image" and isinstance(feature, tfds.features.Image):
        return
    item: Any = feature.feature if is_list else feature
    is_class = isinstance(item, tfds.features.ClassLabel) or (
        isinstance(item, tfds.features.Tensor)
        and item.shape == ()
        and item.np_dtype in (np.int32, np.int64)
    )
    may_be_class = column == "label" or (column == "tags" and is_list)
    if not (isinstance(item, tfds.features.Text) or (is_class and may_be_class)):
        raise ValueError(
            f"data.{key}={name!r}: this feature of {info.full_name} is {feature}, from which "
            f"{column!r} cannot be read"
        )


def _features(builder: Builder) -> dict[str, Any]:
    features = builder.info.features
    return dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}


def find_builder(settings: SourceSettings) -> Builder:
    """The builder of the set called `settings.name`; nothing is downloaded yet.

    Raises:
        ValueError: TFDS has no such set, config or version.
    """
    name = settings.name
    if not name:
        raise ValueError(
            "data.source='tfds' needs data.name, a name of TFDS such as 'wmt14_translate/de-en'"
        )
    base = re.split("[/:]", name)[0]
    known = tfds.list_builders(with_community_datasets=False)
    if base not in known:
        near = ", ".join(difflib.get_close_matches(base, known, n=5)) or "none"
        raise ValueError(f"data.name={name!r}: TFDS has no set {base!r}; near names: {near}")
    folder = Path(settings.cache_dir).expanduser() / "tfds"
    try:
        return tfds.builder(name, data_dir=folder)
    except Exception as error:
        for path in (folder / base).rglob(manifest.NAME):  # of a set that is prepared
            if path.parent.parent.name != "columns":
                _check_whole(path.parent)
        if not isinstance(error, ValueError | AssertionError):  # which tell of config and version
            raise
        configs = ", ".join(tfds.builder_cls(base).builder_configs) or "none"
        raise ValueError(
            f"data.name={name!r}: TFDS has {base!r}, but not this config or version; its configs: "
            f"{configs}"
        ) from error


def read_builder(
    builder: Builder, splits: Sequence[str], features: Sequence[str], *, pictures: bool = False
) -> Iterator[Examples]:
    """Yields these features of the splits in blocks; the set is prepared where it is not yet.

    pictures: whether the first feature is images, which stay encoded.
    """
    folder = Path(builder.data_path)
    if not folder.is_dir():
        with locked(folder.parent):
            if not folder.is_dir():  # another process may have prepared it in the meantime
                _prepare(builder, folder)
    if pictures:
        return _pictures(folder, splits, *features)
    # TFDS takes so long to decode an example that what it has decoded is kept, in the set's folder.
    columns = folder / "columns" / fingerprint(splits, features)
    return built_once(columns, lambda: _decode(folder, splits, features))


def _decode(folder: Path, splits: Sequence[str], features: Sequence[str]) -> Iterator[Examples]:
    """These features of a prepared set, in blocks."""
    for _, _, records in _records(folder, splits, BLOCK, None):
        yield {name: [_plain(record[name]) for record in records] for name in features}


def _pictures(folder: Path, splits: Sequence[str], image: str, label: str) -> Iterator[Examples]:
    """The images of a prepared set and their labels or objects, in blocks."""
    encoded = {image: tfds.decode.SkipDecoding()}
    for part, start, records in _records(folder, splits, _PICTURES, encoded):
        names = (f"{part}:{start + number}" for number in range(len(records)))
        pairs = zip(names, records, strict=True)
        yield {
            image: [Picture(name, bytes(record[image])) for name, record in pairs],
            label: [_plain(record[label]) for record in records],
        }


def _records(
    folder: Path, splits: Sequence[str], size: int, decoders: Any
) -> Iterator[tuple[str, int, Sequence[Any]]]:
    """So many records at a time of a prepared set, with "SET:SPLIT" and the first one's number."""
    _check_whole(folder)
    # As it lies on the disk: another process may have prepared it since its builder was made.
    builder = tfds.builder_from_directory(folder)
    for split in splits:
        if not builder.info.splits[split].num_examples:
            raise ValueError(f"{builder.info.full_name}: split {split!r} has no example")
        # pyright does not see the parameters through TFDS's decorators.
        source = builder.as_data_source(split, decoders=decoders)  # pyright: ignore
        part = f"{builder.info.full_name}:{split}"
        for start in range(0, len(source), size):
            yield part, start, source.__getitems__(range(start, min(start + size, len(source))))


def _check_whole(folder: Path) -> None:
    """Raises ValueError where a prepared set has other files than it was prepared with."""
    if fault := damage(folder):
        raise ValueError(f"{folder} is damaged ({fault}): delete it, and it is prepared again")


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
    manifest.write(folder)


def _plain(value: Any) -> Any:
    """What TFDS decodes (bytes, NumPy) as str, numbers, lists and dicts of them."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value
