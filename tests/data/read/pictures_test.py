"""Sources of labelled images yield what their files hold, and say what is wrong with them."""

import dataclasses
import io
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds

from tests.data import drawn_images
from tests.data.toy import source_settings
from transformer_jax.data.read import catalogue, images, parse, sources
from transformer_jax.data.read.examples import concatenate
from transformer_jax.data.read.sources import PICTURES


def read(source, folder, split, **changes):
    """The pixels and the label of each image, in grey, and their names."""
    settings = source_settings(source, folder, **changes)
    rows = []
    for piece in sources.read(settings, PICTURES, (split,)):
        rows += zip(piece["image"], piece["label"], strict=True)
    return [(images.decode(p, 1)[..., 0], label) for p, label in rows], [p.name for p, _ in rows]


def pairs(split):
    """All images of a split by their numbers."""
    numbers = range(drawn_images.COUNTS[split])
    return [(drawn_images.pixels(split, n), drawn_images.label(n)) for n in numbers]


def test_a_folder_has_its_labels_as_folders(tmp_path):
    folder = drawn_images.write(tmp_path)
    (folder / "test" / ".hidden").mkdir()
    (folder / "test" / "dark" / ".DS_Store").write_bytes(b"nothing")
    rows, names = read("folder", folder, "test")
    expected = [pair for label in drawn_images.LABELS for pair in pairs("test") if pair[1] == label]
    np.testing.assert_equal(rows, expected)
    assert names[0] == str(folder / "test" / "bright" / "000.png")
    settings = source_settings("folder", folder)
    before = sources.version(settings, PICTURES, ("test",))
    (folder / "test" / "dark" / "new.png").write_bytes(images.png(np.zeros((4, 4), np.uint8)))
    assert sources.version(settings, PICTURES, ("test",)) != before
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: expected a folder for each label"):
        read("folder", folder, "empty")


def test_digits_are_divided_once_into_all_of_them(tmp_path):
    from sklearn.datasets import load_digits

    parts = {split: read("digits", tmp_path, split) for split in drawn_images.COUNTS}
    assert [len(names) for _, names in parts.values()] == [1257, 180, 360]
    names = [name for _, ids in parts.values() for name in ids]
    assert len(set(names)) == 1797
    values, labels = load_digits(return_X_y=True)
    for rows, ids in parts.values():
        for (pixels, label), name in list(zip(rows, ids, strict=True))[::50]:
            number = int(name.rpartition(":")[2])
            assert label == str(labels[number])
            assert np.abs(pixels / 255 - values[number].reshape(8, 8) / 16).max() < 1 / 500
        assert {label for _, label in rows} == set("0123456789")
    with pytest.raises(ValueError, match="no split 'dev': train, validation, test"):
        read("digits", tmp_path, "dev")


def parquet(path, values, labels, names=None, kind=None):
    table = pyarrow.table({"image": pyarrow.array(values, kind), "label": labels})
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    pyarrow.parquet.write_table(table, path)


FIELDS = {"text_feature": "image", "label_feature": "label"}


def test_parquet_has_bytes_or_hugging_faces_struct(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "_READ", 3)  # so that there are several blocks
    encoded = [images.png(pixels) for pixels, _ in pairs("test")]
    structs = [{"bytes": data, "path": f"{n}.png"} for n, data in enumerate(encoded)]
    numbers = [drawn_images.LABELS.index(label) for _, label in pairs("test")]
    parquet(tmp_path / "structs", structs, numbers, drawn_images.LABELS)
    parquet(tmp_path / "bytes", encoded, [label for _, label in pairs("test")])
    for name in ("structs", "bytes"):
        np.testing.assert_equal(read("parquet", tmp_path, name, **FIELDS)[0], pairs("test"))
    parquet(tmp_path / "numbers", encoded, numbers)
    rows, names = read("parquet", tmp_path, "numbers", **FIELDS)
    assert [label for _, label in rows] == list(map(str, numbers))
    assert names == [f"{tmp_path / 'numbers'}:{number}" for number in range(1, 8)]


@pytest.mark.parametrize(
    ("values", "labels", "names", "message"),
    [
        (["text"], [0], None, "w:1: the field 'image' holds 'text', not the bytes"),
        ([{"path": "x"}], [0], None, "w:1: the field 'image' holds None, not the bytes"),
        ([b"x"], [-1], ["a", "b"], "w:1: the field 'label' holds no label"),
        ([b"x"], [0.5], None, "w:1: the field 'label' holds no label"),
    ],
)
def test_what_is_no_image_or_label_in_parquet_is_refused(tmp_path, values, labels, names, message):
    parquet(tmp_path / "w", values, labels, names)
    with pytest.raises(ValueError, match=message):
        read("parquet", tmp_path, "w", **FIELDS)


class ToyImages(tfds.core.GeneratorBasedBuilder):
    """The drawn images, with a box in some, and a crowd. TFDS knows it as "toy_images"."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        objects = {
            "bbox": tfds.features.BBoxFeature(),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            "is_crowd": tfds.features.Scalar(dtype=np.bool_),
        }
        features = {
            "image": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=list(drawn_images.LABELS)),
            "objects": tfds.features.Sequence(objects),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in ("train", "test")}

    def _generate_examples(self, split):
        boxes = [tfds.features.BBox(0.0, 0.25, 0.5, 1.0), tfds.features.BBox(0.0, 0.0, 1.0, 1.0)]
        for number, (pixels, label) in enumerate(pairs(split)):
            objects = [
                {"bbox": box, "label": which, "is_crowd": bool(which)}
                for which, box in enumerate(boxes[: number % 3])
            ]
            example = {"image": io.BytesIO(images.png(pixels)), "label": label, "objects": objects}
            yield f"{number:03}", example


def test_tfds_has_boxes_in_pixels(tmp_path):
    fields = {"name": "toy_images", "text_feature": "image", "label_feature": "objects"}
    settings = source_settings("tfds", tmp_path, **fields)
    examples = concatenate(sources.read(settings, sources.BOXED, ("test",)))
    numbers = {pixels.tobytes(): number for number, (pixels, _) in enumerate(pairs("test"))}
    assert len(examples["image"]) == len(numbers)
    for picture, size, boxes, labels in zip(*examples.values(), strict=True):
        pixels = images.decode(picture, 1)[..., 0]
        (rows, columns), count = size, numbers[pixels.tobytes()] % 3
        expected = [
            [columns / 4, 0, columns, rows / 2, columns * rows * 3 / 8, 0],
            [0, 0, columns, rows, columns * rows, 1],
        ]
        assert (rows, columns) == pixels.shape[:2] and labels == ["cat", "dog"][:count]
        assert boxes == expected[:count]
    wrong = dataclasses.replace(settings, label_feature="image")
    with pytest.raises(ValueError, match="'image': toy_images.*'bbox' and a 'label'.*objects"):
        next(sources.read(wrong, sources.BOXED, ("test",)))


def test_tfds_has_images_as_they_are_encoded(tmp_path, monkeypatch):
    """In the order that its preparation has made."""
    monkeypatch.setattr(catalogue, "_PICTURES", 3)  # so that there are several blocks
    fields = {"name": "toy_images", **FIELDS}
    rows, names = read("tfds", tmp_path, "test[:7]", **fields)
    expected = sorted((pixels.tobytes(), label) for pixels, label in pairs("test"))
    assert sorted((pixels.tobytes(), label) for pixels, label in rows) == expected
    assert names == [f"toy_images/1.0.0:test[:7]:{number}" for number in range(7)]
    with pytest.raises(ValueError, match="feature of .* is ClassLabel.*'image' cannot be read"):
        read("tfds", tmp_path, "test", **(fields | {"text_feature": "label"}))
