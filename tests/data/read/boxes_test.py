"""Images with boxes, in COCO's and Pascal VOC's format, as a generator has written them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.toy import source_settings
from transformer_jax.data.read import boxes, sources
from transformer_jax.data.read.boxes import BOXED, left_out, read_coco, read_voc

NAMES = {3: "cat", 7: "dog"}


def pictures(folder, count=4, ending=".png"):
    """Images of 30 rows and 40 columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(folder / f"{number}{ending}")


def annotation(number, image, box, category=3, **more):
    return {"id": number, "image_id": image, "category_id": category, "bbox": box} | more


# In the image, beyond its edges, beside it, and without a width
ANNOTATIONS = [
    annotation(1, 0, [1.5, 2, 10, 20]),
    annotation(2, 0, [30, 20, 30, 30], 7, area=50, iscrowd=1),
    annotation(3, 1, [-5, -5, 10, 10]),
    annotation(4, 1, [60, 5, 5, 5], 7),
    annotation(5, 2, [5, 5, 0, 9]),
]


def coco(tmp_path, folder="val", **changes):
    """The path of a file of annotations, whose images lie in a folder."""
    pictures(tmp_path / folder)
    images = [{"id": n, "file_name": f"{n}.png", "height": 30, "width": 40} for n in range(4)]
    content = {"images": images, "annotations": ANNOTATIONS}
    content["categories"] = [{"id": number, "name": name} for number, name in NAMES.items()]
    path = tmp_path / "annotations" / "instances_val.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content | changes))
    return path


@pytest.mark.parametrize("folder", ["val", "annotations/val", "images", "annotations"])
def test_coco_says_where_boxes_are_cut_to_the_image(tmp_path, folder):
    rows = list(read_coco(coco(tmp_path, folder), skip_bad=False))
    assert [len(image.data) > 50 for image, *_ in rows] == [True] * 4
    assert all(size == [30, 40] for _, size, *_ in rows)
    assert rows[0][2:] == ([[1.5, 2, 11.5, 22, 200, 0], [30, 20, 40, 30, 50, 1]], ["cat", "dog"])
    assert rows[1][2] == [[0, 0, 5, 5, 100, 0], [40, 5, 40, 10, 25, 0]]
    assert rows[3][2:] == ([], [])
    examples = dict(zip(BOXED, map(list, zip(*rows, strict=True)), strict=True))
    assert left_out(examples) == {"boxes without area": 2, "crowds or difficult boxes": 1}


def test_packed_annotations_find_their_images(tmp_path):
    path = coco(tmp_path)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_coco(packed, skip_bad=False)) == list(read_coco(path, skip_bad=False))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(images="no list"), "expected COCO's format"),
        (dict(categories=[]), "expected COCO's format.*KeyError"),
        (dict(annotations=[annotation(1, 9, [1, 1, 2, 2])]), "KeyError.9"),
        (dict(annotations=[annotation(1, 0, [1, 1, 2])]), "expected COCO's format"),
        (dict(annotations=[annotation(1, 0, [1, 1, 2, float("inf")])]), "is not finite"),
        (dict(images=[{"id": 0, "file_name": "9.png"}], annotations=[]), "9.png: cannot be read"),
        (
            dict(images=[{"id": 0, "file_name": "0.png", "height": 3, "width": 4}], annotations=[]),
            "0.png has 30 rows and 40 columns, but 3 and 4",
        ),
    ],
)
def test_coco_of_another_form_is_named(tmp_path, changes, words):
    path = coco(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"{path.name}.*{words}"):
        list(read_coco(path, skip_bad=False))


def test_broken_images_are_counted_where_they_may_be(tmp_path, caplog):
    path = coco(tmp_path)
    (tmp_path / "val" / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="1.png"):
        list(read_coco(path, skip_bad=False))
    assert len(list(read_coco(path, skip_bad=True))) == 3
    assert "1 lines of instances_val.json are left out" in caplog.text and "1.png" in caplog.text


def voc(tmp_path, *of_images):
    """The path of a split of images with such objects."""
    pictures(tmp_path / "JPEGImages", len(of_images), ".jpg")
    for name in ("Annotations", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    for number, objects in enumerate(of_images):
        rows = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
            f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox>{''.join(more)}</object>"
            for name, (x0, y0, x1, y1), *more in objects
        )
        text = f"<annotation><size><width>40</width><height>30</height></size>{rows}</annotation>"
        (tmp_path / "Annotations" / f"{number}.xml").write_text(text)
    path = tmp_path / "ImageSets" / "Main" / "train.txt"
    path.write_text("".join(f"{number}\n" for number in range(len(of_images))) + "\n")
    return path


def test_boxes_of_voc_have_corners_that_count_from_1_and_may_be_difficult(tmp_path):
    """Both corners belong to a box, and nobody has to find a difficult one."""
    marks = ("", "<difficult>0</difficult>", "<difficult>1</difficult>")
    corners = ((1, 1, 40, 30), (5, 6, 5, 20), (3, 4, 5.5, 44))
    objects = list(zip(("cat", "dog", "cat"), corners, marks, strict=True))
    ((_, size, rows, names),) = read_voc(voc(tmp_path, objects), skip_bad=False)
    assert size == [30, 40] and names == ["cat", "dog", "cat"]
    assert rows[0] == [0, 0, 40, 30, 1200, 0]
    assert not boxes.has_area(rows[1]) and boxes.has_area(rows[2])
    assert rows[2][:4] == [2, 3, 5.5, 30]
    assert [box[5] for box in rows] == [0, 0, boxes.DIFFICULT]
    assert left_out({"boxes": [rows]}) == {"boxes without area": 1, "crowds or difficult boxes": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<annotation>", "0.xml: expected an annotation of Pascal VOC"),
        ("<annotation/>", "there is no size/height"),
        (None, "0.xml: expected"),
    ],
)
def test_voc_of_another_form_is_named(tmp_path, text, words):
    path = voc(tmp_path, [])
    file = tmp_path / "Annotations" / "0.xml"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ValueError, match=f"train.txt:1: .*{words}"):
        list(read_voc(path, skip_bad=False))


def test_boxes_of_voc_belong_to_the_image_of_their_name(tmp_path):
    corners = [[[k, k + n, 9 + k, 12 + n] for k in range(n)] for n in range(4)]
    objects = [[("cat", (x + 1, y + 1, *high)) for x, y, *high in row] for row in corners]
    truth = read_voc(voc(tmp_path, *objects), skip_bad=False)
    for number, (row, (picture, _, rects, names)) in enumerate(zip(corners, truth, strict=True)):
        file = Path(picture.name)
        assert file.stem == str(number) and picture.data == file.read_bytes()
        assert [box[:4] for box in rects] == row and names == ["cat"] * len(row)


def test_a_changed_image_makes_another_version(tmp_path):
    split = voc(tmp_path, [("cat", (1, 1, 9, 9))]).relative_to(tmp_path)
    settings = source_settings("voc", tmp_path)
    before = sources.version(settings, BOXED, (str(split),))
    assert before == sources.version(settings, BOXED, (str(split),))
    Image.new("RGB", (40, 30), (9, 9, 9)).save(tmp_path / "JPEGImages" / "0.jpg")
    assert before != sources.version(settings, BOXED, (str(split),))


def test_scenes_are_pictures_with_boxes_or_with_their_number():
    settings = source_settings("scenes", Path(), name="shapes")
    boxed, counted = (
        next(sources.read(settings, columns, ("train[:9]",)))
        for columns in (BOXED, sources.PICTURES)
    )
    assert counted["label"] == [str(len(row)) for row in boxed["boxes"]]
    assert [p.data for p in counted["image"]] == [p.data for p in boxed["image"]]
    sides = np.array([box[:5] for row in boxed["boxes"] for box in row])
    np.testing.assert_array_equal(
        sides[:, 4], (sides[:, 2] - sides[:, 0]) * (sides[:, 3] - sides[:, 1])
    )
