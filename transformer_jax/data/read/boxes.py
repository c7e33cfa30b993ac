"""Readers of pictures with boxes, to rows of BOXED: generated scenes, COCO's JSON, Pascal's XML."""

import itertools
import json
import math
import xml.etree.ElementTree as xml
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.corpora import scenes
from transformer_jax.data.read.examples import Examples, SourceSettings, gathered
from transformer_jax.data.read.images import size_of
from transformer_jax.data.read.open_file import read_lines
from transformer_jax.data.read.parse import Row
from transformer_jax.data.read.pictures import checked_pictures, from_file, netpbm

CROWD, DIFFICULT = 1, 2
# A picture, its rows and columns, its boxes, and the name of what each holds. A box is a list of
# x0, y0, x1, y1 in pixels, from edge to edge and inside of the picture, the area by which scores
# call it small or large, and where nobody has to find it CROWD or DIFFICULT, or else 0.
BOXED: tuple[str, ...] = ("image", "size", "boxes", "labels")
# The path of an image, its rows and columns (0: nobody knows), and its boxes, each with its name.
Annotated = tuple[Path, Sequence[int], list[tuple[list[float], str]]]


def left_out(examples: Examples) -> dict[str, int]:
    """How many boxes nothing is learnt of, and why."""
    boxes = [box for row in examples["boxes"] for box in row]
    empty = sum(not has_area(box) for box in boxes)
    ignored = sum(flag > 0 for *_, flag in boxes)
    return {"boxes without area": empty, "crowds or difficult boxes": ignored}


def has_area(box: Sequence[float]) -> bool:
    """Whether there is something between the corners."""
    x0, y0, x1, y1 = box[:4]
    return x0 < x1 and y0 < y1


def read_scenes(
    settings: SourceSettings, splits: Sequence[str], columns: Sequence[str]
) -> Iterator[Examples]:
    """Scenes with their boxes; as pictures with a label, that is how many objects they show."""

    def row(name: str, scene: scenes.Scene) -> Row:
        picture, (pixels, corners, labels) = netpbm(name, scene.pixels), scene
        if columns != BOXED:
            return picture, str(len(labels))
        boxes = [[*box, (box[2] - box[0]) * (box[3] - box[1]), 0] for box in corners]
        return picture, list(pixels.shape), boxes, labels

    return gathered(columns, itertools.starmap(row, scenes.scenes(settings.name, splits)))


def read_coco(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """A file of COCO's annotations (Lin et al. 2014), with all images that it lists.

    Raises ValueError where it has another content, or as `_row`.
    """
    return checked_pictures(path, enumerate(_coco(path), start=1), _row, skip_bad)


def coco_images(path: Path) -> tuple[Path, ...]:
    """The images that a file of COCO's annotations lists, as far as they are there."""
    return tuple(image for image, *_ in _coco(path) if image.is_file())


def _coco(path: Path) -> list[Annotated]:
    """What a file says of each image."""
    text = "\n".join(line for line in read_lines(path) if line is not None)
    try:
        content = json.loads(text)
        names = {row["id"]: str(row["name"]) for row in content["categories"]}
        boxes: dict[Any, list[Any]] = {row["id"]: [] for row in content["images"]}
        for row in content["annotations"]:
            x, y, width, height = map(float, row["bbox"])
            numbers = [x, y, x + width, y + height, float(row.get("area", width * height))]
            if not all(map(math.isfinite, numbers)):
                raise ValueError(f"the box {row['bbox']} is not finite")
            box = [*numbers, int(row.get("iscrowd", 0))]
            boxes[row["image_id"]].append((box, names[row["category_id"]]))
        return [
            (_image(path, row["file_name"]), (row.get("height", 0), row.get("width", 0)), objects)
            for row, objects in zip(content["images"], boxes.values(), strict=True)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected COCO's format, {{images[].{{id, file_name, height, width}}, "
            "annotations[].{image_id, category_id, bbox}, categories[].{id, name}} "
            f"({error!r})"
        ) from error


def _image(path: Path, name: str) -> Path:
    """An image that annotations name: in their folder or the one above, or in a folder there that
    is called as they end, as "val2017" of "instances_val2017.json" (.gz), or "images".

    Where there is none, the first of these.
    """
    folders = ["", path.name.partition(".")[0].rpartition("_")[2], "images"]
    places = [above / folder / name for above in path.parents[:2] for folder in folders]
    return next((place for place in places if place.is_file()), places[0])


def read_voc(path: Path, *, skip_bad: bool) -> Iterator[Row]:
    """ImageSets/Main/SPLIT.txt of Pascal VOC (Everingham et al. 2010): a name a line.

    Its corners count pixels from 1, and the last is part of the box. A box without area is one by
    these numbers: it does not become one of a pixel. A "difficult" one is not learned, and does not
    count where it is found or missed.

    Raises ValueError where an annotation is missing or another thing, or as `_row`.
    """

    def read(line: str) -> Row | None:
        return _row(_annotated(*_voc_pair(path, line))) if line.strip() else None

    lines = (line or "" for line in read_lines(path, skip_bad=skip_bad))
    return checked_pictures(path, enumerate(lines, start=1), read, skip_bad)


def voc_files(path: Path) -> tuple[Path, ...]:
    """The annotations and images of a split, as far as they are there."""
    pairs = (_voc_pair(path, line) for line in read_lines(path) if line and line.strip())
    return tuple(file for pair in pairs for file in pair if file.is_file())


def _voc_pair(path: Path, line: str) -> tuple[Path, Path]:
    """The annotation of a line's name and its image."""
    root, name = path.parents[2], line.split()[0]
    return root / "Annotations" / f"{name}.xml", root / "JPEGImages" / f"{name}.jpg"


def _annotated(file: Path, image: Path) -> Annotated:
    """What an annotation says of its image."""

    def text(row: Any, path: str) -> str:
        if not (content := row.findtext(path)):
            raise ValueError(f"there is no {path}")
        return content.strip()

    boxes = []
    try:
        root = xml.parse(file).getroot()
        size = [int(text(root, f"size/{side}")) for side in ("height", "width")]
        for row in root.iter("object"):
            keys = (f"bndbox/{key}" for key in ("xmin", "ymin", "xmax", "ymax"))
            x0, y0, x1, y1 = corners = [float(text(row, key)) for key in keys]
            if not all(map(math.isfinite, corners)):
                raise ValueError(f"the corners {corners} are not finite")
            low = [x0 - 1, y0 - 1]
            high = [x1, y1] if x0 < x1 and y0 < y1 else low
            area, difficult = (high[0] - low[0]) * (high[1] - low[1]), row.findtext("difficult")
            box = [*low, *high, area, DIFFICULT * bool(int(difficult or 0))]
            boxes.append((box, text(row, "name")))
    except (OSError, ValueError, xml.ParseError) as error:
        raise ValueError(
            f"{file}: expected an annotation of Pascal VOC, with size/{{width, height}} and "
            f"object[].{{name, bndbox/{{xmin, ymin, xmax, ymax}}}} ({error})"
        ) from None
    return image, size, boxes


def _row(annotated: Annotated) -> Row:
    """A row of BOXED. Raises ValueError where there is no such image, or it has another size."""
    file, size, boxes = annotated
    try:
        picture = from_file(file)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    rows, columns = size_of(picture)
    if tuple(size) not in ((rows, columns), (0, 0)):
        raise ValueError(
            f"{file} has {rows} rows and {columns} columns, but {size[0]} and {size[1]} by its "
            "annotation"
        )
    inside = np.clip([box[:4] for box, _ in boxes] or np.zeros((0, 4)), 0, [columns, rows] * 2)
    cut = [[*corners, *box[4:]] for corners, (box, _) in zip(inside.tolist(), boxes, strict=True)]
    return picture, [rows, columns], cut, [name for _, name in boxes]
