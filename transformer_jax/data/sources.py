"""Where sentence pairs come from: the embedded corpus, text files, SCAN files, TFDS's catalogue."""

import difflib
import gzip
import re
import shutil
import types
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

# Without h5py, TFDS stops registering its sets before it comes to these, and does not say so.
import tensorflow_datasets.translate  # noqa: F401
from tensorflow_datasets.core.download import extractor
from tensorflow_datasets.core.download.util import DownloadError

from transformer_jax.data.cache import locked
from transformer_jax.data.grammar import EnglishGermanGrammar

# TFDS unpacks archives through these two functions of TensorFlow; plain ones do for local files.
extractor.tf = types.SimpleNamespace(
    compat=types.SimpleNamespace(as_text=str),
    io=types.SimpleNamespace(gfile=types.SimpleNamespace(GFile=open)),
)

_BLOCK = 16_384  # records read at a time, which bounds what they take beside the columns

Examples = dict[str, list]  # columns of equal length; "source" and "target" are lists of str


def load(
    *,
    source: str,
    dir: str,
    name: str,
    splits: tuple[str, ...],
    source_language: str,
    target_language: str,
    cache_dir: str,
) -> Examples:
    """All examples of the splits, one after the other.

    Args:
        source: "embedded" (the generated corpus), "text" (parallel files), "scan" (files of lines
            "IN: words OUT: ACTIONS") or "tfds" (a translation set of TFDS).
        dir: folder of the files; text and scan.
        name: name in TFDS's catalogue, such as "wmt14_translate/de-en"; tfds.
        splits: text: prefixes P of the pairs P.<source_language>, P.<target_language>; scan:
            files; embedded and tfds: TFDS split expressions such as "train[:90%]".
        source_language, target_language: endings of the files (text), features of the set (tfds).
        cache_dir: TFDS sets are prepared here once.

    Returns:
        "source" and "target", lists of str; for embedded also the other columns of the corpus.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: anything else that is wrong with the input; the message names file and line.
    """
    if not splits:
        raise ValueError("no data to read: data.train (or data.test) names no split or file")
    tfds_dir = Path(cache_dir).expanduser() / "tfds"
    if source == "embedded":
        return read_builder(EnglishGermanGrammar(data_dir=tfds_dir), splits)
    if source == "tfds":
        builder = catalogue_builder(name, tfds_dir, (source_language, target_language))
        columns = read_builder(builder, splits)
        return {"source": columns[source_language], "target": columns[target_language]}
    if source not in ("text", "scan"):
        raise ValueError(f"data.source={source!r}: expected embedded, text, tfds or scan")
    files = find_files(
        source=source,
        dir=dir,
        splits=splits,
        source_language=source_language,
        target_language=target_language,
    )
    read = read_scan if source == "scan" else read_pair
    return concatenate([read(*paths) for paths in files])


def find_files(
    *, source: str, dir: str, splits: tuple[str, ...], source_language: str, target_language: str
) -> list[tuple[Path, ...]]:
    """The files of each split of "text" (two) and "scan" (one); none of other sources.

    Raises:
        FileNotFoundError: a missing file or folder.
        ValueError: dir is empty.
    """
    if source not in ("text", "scan"):
        return []
    if not dir:
        raise ValueError(f"data.source={source!r} needs data.dir, the folder of its files")
    folder = Path(dir).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"data.dir={dir!r}: there is no such folder")
    sides = ("",) if source == "scan" else (f".{source_language}", f".{target_language}")
    return [tuple(_find(folder / f"{split}{side}") for side in sides) for split in splits]


def concatenate(parts: Sequence[Examples]) -> Examples:
    """The examples of all parts, which have the same columns."""
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def hold_out(examples: Examples, size: int) -> tuple[Examples, Examples]:
    """All but the last `size` examples, and these.

    Raises:
        ValueError: one of the two would be empty.
    """
    total = len(examples["source"])
    if not 0 < size < total:
        raise ValueError(
            f"data.validation_size={size}: expected 1 to {total - 1} of the {total} examples in "
            "data.train"
        )
    train = {key: values[:-size] for key, values in examples.items()}
    return train, {key: values[-size:] for key, values in examples.items()}


def read_pair(source: Path, target: Path) -> Examples:
    """Parallel files: line i of one is the translation of line i of the other."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: "
            "parallel files must have one line for one"
        )
    return {"source": sources, "target": targets}


def read_scan(path: Path) -> Examples:
    """A file of SCAN (Lake and Baroni 2018): a line is "IN: jump twice OUT: I_JUMP I_JUMP"."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        command, separator, actions = line.removeprefix("IN: ").partition(" OUT: ")
        if not line.startswith("IN: ") or not separator:
            raise ValueError(f"{path}:{number}: expected 'IN: words OUT: ACTIONS', got {line!r}")
        pairs.append((command, actions))
    sources, targets = map(list, zip(*pairs, strict=True))
    return {"source": sources, "target": targets}


def read_lines(path: Path) -> list[str]:
    r"""The lines of a UTF-8 file, plain or .gz. They end at "\n" alone; a "\r" before it is cut.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be read or decoded, or is empty.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not data:
        raise ValueError(f"{path}: the file is empty")
    return decode_lines(data, str(path))


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""The lines of UTF-8 text. They end at "\n" alone; a "\r" before it is cut.

    Raises:
        ValueError: naming `name` and the line that is not UTF-8.
    """
    lines = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=1):
        try:
            lines.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x}); convert it, for "
                "example with iconv"
            ) from error
    return lines


def _find(path: Path) -> Path:
    """The file, or where there is none the one with .gz added."""
    zipped = path.with_name(path.name + ".gz")
    if not path.exists() and not zipped.exists():
        raise FileNotFoundError(
            f"{path}: there is no such file, nor {zipped.name} (named by data.train, "
            "data.validation or data.test, in the folder data.dir)"
        )
    return path if path.exists() else zipped


def catalogue_builder(
    name: str, data_dir: Path, languages: tuple[str, str]
) -> tfds.core.DatasetBuilder:
    """The builder of a translation set of TFDS, by its name; nothing is downloaded yet.

    Raises:
        ValueError: TFDS has no such set, config or version, or the set not these languages.
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
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, AssertionError) as error:  # what TFDS raises for a config and a version
        configs = ", ".join(tfds.builder_cls(base).builder_configs) or "none"
        raise ValueError(
            f"data.name={name!r}: TFDS has {base!r}, but not this config or version; its configs: "
            f"{configs}"
        ) from error
    features = builder.info.features
    features = list(features) if isinstance(features, tfds.features.FeaturesDict) else []
    for language in languages:
        if language not in features:
            raise ValueError(
                f"data.name={name!r} has no language {language!r}; its features: "
                f"{', '.join(features)} (see data.source_language, data.target_language)"
            )
    return builder


def read_builder(builder: tfds.core.DatasetBuilder, splits: tuple[str, ...]) -> Examples:
    """All features of the splits, read in bulk; the set is prepared where it is not yet."""
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
            parts.append({key: [_plain(record[key]) for record in records] for key in records[0]})
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
