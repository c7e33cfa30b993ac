"""Readers of labelled images: folders, columns of Parquet, and scikit-learn's digits."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.read.examples import Examples, Picture, SourceSettings
from transformer_jax.data.read.images import decode
from transformer_jax.data.read.parse import checked, opened_parquet, parquet_rows, value_of

Row = tuple[Picture, str]

# Of the 1,797 digits in an order that is fixed: those trained on, of validation, and of the test.
_DIGITS = {"train": range(1257), "validation": range(1257, 1437), "test": range(1437, 1797)}
DIGITS_VERSION = 1


def from_file(path: Path) -> Picture:
    """The image in a file. Raises OSError where it cannot be read."""
    return Picture(str(path), path.read_bytes())


def netpbm(name: str, pixels: np.ndarray) -> Picture:
    """Generated pixels (H, W) or (H, W, 3) as a file in the simplest of formats."""
    kind, (rows, columns) = 5 if pixels.ndim == 2 else 6, pixels.shape[:2]
    return Picture(name, f"P{kind} {columns} {rows} 255\n".encode() + pixels.tobytes())


def files_of(folder: Path) -> tuple[Path, ...]:
    """The files LABEL/FILE of a folder in alphabetical order, but for those with a leading dot."""
    return tuple(sorted(path for path in folder.glob("[!.]*/[!.]*") if not path.is_dir()))


def read_folder(folder: Path, *, skip_bad: bool) -> Iterator[Row]:
    """The images of a folder LABEL/FILE, with their labels. Raises ValueError where it has none."""
    files = files_of(folder)
    if not files:
        raise ValueError(f"{folder}: expected a folder for each label, with its images")
    rows = enumerate(files, start=1)
    yield from checked_pictures(
        folder, rows, lambda path: (from_file(path), path.parent.name), skip_bad
    )


def read_parquet(path: Path, image: str, label: str, *, skip_bad: bool) -> Iterator[Row]:
    """Images in a column of Parquet, as bytes or as Hugging Face's struct of bytes and path.

    Numbers of labels become the names that Hugging Face's metadata has for them.

    Raises:
        ValueError: as `parse.read_parquet`, or a row without the bytes of an image or a label.
    """
    with opened_parquet(path, (image, label)) as file:
        names = _names(file.schema_arrow.metadata or {}, label)
        rows = parquet_rows(path, file, (image, label))

        def read(numbered: tuple[int, dict[str, Any]]) -> Row:
            number, row = numbered
            value, label_value = value_of(row, image), value_of(row, label)
            data, name = value, f"{path}:{number}"
            if isinstance(value, dict):
                data, name = value.get("bytes"), f"{name} ({value.get('path')})"
            if not isinstance(data, bytes):
                raise ValueError(f"the field {image!r} holds {data!r:.50}, not the bytes of a file")
            if isinstance(label_value, int) and names:
                label_value = names[label_value] if 0 <= label_value < len(names) else None
            if not isinstance(label_value, int | str) or label_value == "":
                raise ValueError(f"the field {label!r} holds no label")
            return Picture(name, data), str(label_value)

        numbered = ((number, (number, row)) for number, row in enumerate(rows, start=1))
        yield from checked_pictures(path, numbered, read, skip_bad)


def _names(metadata: dict[bytes, bytes], label: str) -> Sequence[str]:
    """The names of a column's numbers, where Hugging Face's datasets has written them."""
    try:
        return json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()


def checked_pictures(
    path: Path, numbered: Iterable[tuple[int, Any]], read: Callable[[Any], Any], skip_bad: bool
) -> Iterator[Any]:
    """`checked` rows that begin with a picture; one that cannot be decoded is a bad one."""

    def usable(record: Any) -> Any:
        row = read(record)
        if skip_bad and row is not None:  # else preparing decodes it, and names it
            decode(row[0], 3)
        return row

    return checked(path, numbered, usable, skip_bad)


def read_digits(
    settings: SourceSettings, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[Examples]:
    """Scikit-learn's handwritten digits, 1,797 of 8x8 pixels in 17 greys.

    Raises ValueError where there is no such split.
    """
    from sklearn.datasets import load_digits  # only here, since it takes long

    values, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    for split in splits:
        if split not in _DIGITS:
            raise ValueError(f"data.source='digits' has no split {split!r}: {', '.join(_DIGITS)}")
        numbers = order[_DIGITS[split]]
        greys = np.round(values[numbers].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        pictures = [netpbm(f"digits:{n}", image) for n, image in zip(numbers, greys, strict=True)]
        yield dict(zip(columns, (pictures, [str(labels[n]) for n in numbers]), strict=True))
