"""Boxes are read, trained on, scored and written; what is drawn of them stays at their objects."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.tasks import small
from tests.whole.command_line import records
from transformer_jax import api
from transformer_jax.commands.generate import generate
from transformer_jax.commands.train import train
from transformer_jax.config.build import build
from transformer_jax.config.load import CONFIGS, load
from transformer_jax.data.prepare.pictures import UNIT
from transformer_jax.data.read import images
from transformer_jax.inspection.probes import probes
from transformer_jax.tasks import detection
from transformer_jax.tools.show.inspect import inspect

CHANGES = small.IMAGES | small.reads("coco", "train.json", "test.json")
CHANGES |= {
    "data.image_size": (24, 32),
    "data.max_target_length": 3,
    "data.batch_size": 8,
    "data.streams": 4,
    "evaluate.batch_size": 4,
    "model.architecture": "encoder_set",
    "model.num_queries": 4,
    "model.stem": "conv",
    "model.prefix_tokens": 0,
    "model.positions": "sine_2d",
    "model.positions_in": "attention",
    "optimizer.name": "adamw",
    "optimizer.learning_rate": 3e-3,
}
ROWS, COLUMNS = 48, 64
COUNTS = {"train": 24, "test": 6}


def objects(split, number):
    """Bright and dark rectangles: none, one, two or three (in one image four), and a crowd."""
    rng = np.random.default_rng([len(split), number])
    count = 4 if (split, number) == ("train", 5) else number % 4
    cells = rng.permutation(12)[:count]
    boxes = [[16 * (c % 4) + 1, 16 * (c // 4) + 2, 13, 11 + number % 3] for c in cells.tolist()]
    return [(box, ("bright", "dark")[n % 2]) for n, box in enumerate(boxes)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images of 48 rows and 64 columns, and COCO's files of their boxes."""
    folder = tmp_path_factory.mktemp("boxed")
    for split, count in COUNTS.items():
        listed, annotations = [], []
        for image in range(count):
            pixels = np.full((ROWS, COLUMNS), 120, np.uint8)
            for (x, y, width, height), label in objects(split, image):
                pixels[y : y + height, x : x + width] = {"bright": 250, "dark": 10}[label]
                row = {"image_id": image, "bbox": [x, y, width, height]}
                annotations.append(row | {"category_id": ("bright", "dark").index(label)})
            if image == 1:
                row = {"image_id": image, "category_id": 0, "bbox": [0, 0, 30, 30], "iscrowd": 1}
                annotations += [row, row | {"bbox": [5, 5, 0, 4], "iscrowd": 0}]
            (folder / split).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / split / f"{image:03}.png")
            listed.append({"id": image, "file_name": f"{split}/{image:03}.png"})
        content = {
            "images": [row | {"height": ROWS, "width": COLUMNS} for row in listed],
            "annotations": [row | {"id": n} for n, row in enumerate(annotations)],
            "categories": [{"id": n, "name": name} for n, name in enumerate(("bright", "dark"))],
        }
        (folder / f"{split}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def config(folder):
    """changes -> the config of a small run on these images."""
    return small.configs(folder, CHANGES)


@pytest.mark.long
def test_boxes_are_trained_on_scored_and_written(config, folder, tmp_path):
    whole = tmp_path / "whole"
    assert train(config(), whole) == 0
    first, *_, last = records(whole)
    assert last["train/loss"] < first["train/loss"]
    assert {"validation/ap50", "validation/ap50_any", "validation/giou_loss"} <= last.keys()
    results = json.loads((whole / "results.json").read_text())
    assert results["status"] == "finished"
    assert results["validation/loss"] == pytest.approx(last["validation/loss"])
    assert {"test/ap", "test/ap50/bright", "test/ap50/dark", "test/ar100"} <= results.keys()
    assert "test/ap_large" not in results  # there are none

    paths = [folder / "test" / "002.png", folder / "test" / "003.png"]
    (tmp_path / "lines").write_text(f"{paths[0]}\n\n{paths[1]}\n")
    assert generate(config(), whole, None, str(tmp_path / "lines"), str(tmp_path / "found")) == 0
    one, blank, other = (tmp_path / "found").read_text().split("\n")[:3]
    assert blank == ""
    for path, line in zip(paths, (one, other), strict=True):
        record = json.loads(line)
        assert record["file"] == str(path)
        assert len(record["boxes"]) == len(record["labels"]) == len(record["coco"])
        assert all(row["image_id"] == int(path.stem) for row in record["coco"])
        assert [row["category_name"] for row in record["coco"]] == record["labels"]
        names = json.loads((whole / "labels.json").read_text())
        assert [names[row["category_id"]] for row in record["coco"]] == record["labels"]
    pixels = np.asarray(Image.open(paths[1]))
    by_path, by_pixels = map(json.loads, api.load(whole).generate([paths[1], pixels]))
    assert by_path == record and by_pixels["file"] == "image 1"
    assert (by_pixels["boxes"], by_pixels["scores"]) == (record["boxes"], record["scores"])


def test_one_class_is_enough_as_the_other_is_none(config, folder):
    content = json.loads((folder / "test.json").read_text())
    bright = [row for row in content["annotations"] if row["category_id"] == 0]
    for file, rows in (("one.json", bright), ("none.json", [])):
        (folder / file).write_text(json.dumps(content | {"annotations": rows}))
    one, none = (
        config(data__train=(file,), data__validation=(file,), data__test=())
        for file in ("one.json", "none.json")
    )
    assert build(one).data.labels == ("bright",)
    with pytest.raises(ValueError, match="it has no labels, so there is nothing to learn"):
        build(none)


@pytest.mark.long
def test_a_loss_does_not_depend_on_how_many_images_are_scored_at_once(config):
    """Nor on the rows that fill up the last batch."""
    few, many = (build(config(evaluate__batch_size=size)) for size in (4, 6))
    batch: Any = next(few.train_streams())
    params = few.new_state(batch).params
    one, other = (run.trained(params).losses(run.data.split("test")) for run in (few, many))
    for name, value in one.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-5, err_msg=name)


# From files to batches


def rows_of(data, count):
    for batch in itertools.islice(data.train_streams(), count):
        for row in range(len(batch["inputs"])):
            there = batch["inputs_segment_ids"][row] > 0
            patches, grid = batch["inputs"][row][there], batch["grid"][row][there]
            pixels = images.joined(patches, grid, data.settings.images)
            real = batch["targets_segment_ids"][row] > 0
            yield pixels[..., 0], batch["targets"][row][real], batch["boxes"][row][real] / UNIT


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(data__augment=("flip", "shift")),
        dict(data__augment=("crop",)),
        dict(data__image_fit="cover", data__image_size=(32, 16)),
        dict(data__image_fit="inside", data__image_size=(64, 32)),
    ],
)
def test_boxes_of_batches_lie_where_their_objects_are(config, changes):
    """What is bright or dark is inside of a box of that label, and fills it; edges are blurred."""
    data = build(config(**changes)).data
    assert data.labels == ("bright", "dark")
    count = 0
    for pixels, labels, boxes in rows_of(data, 3):
        sides = np.array(pixels.shape[::-1])
        outside = np.zeros(pixels.shape, bool)
        outside[2:-2, 2:-2] = True  # at the edges is a breath of what is cut off
        for label, box in zip(labels, boxes, strict=True):
            low, high = (box[:2] - box[2:] / 2) * sides, (box[:2] + box[2:] / 2) * sides
            x0, y0 = np.floor(low + 0.02).astype(int)
            x1, y1 = np.ceil(high - 0.02).astype(int)
            outside[max(y0 - 2, 0) : y1 + 2, max(x0 - 2, 0) : x1 + 2] = False
            inner = pixels[y0 + 2 : y1 - 2, x0 + 2 : x1 - 2]
            assert np.all(inner > 180 if label == 1 else inner < 60)
            count += inner.size > 2
        beside = pixels[outside & (pixels > 0)]  # black is where nothing was before a shift
        assert beside.size == 0 or np.all((beside > 100) & (beside < 140))
    assert count > 10


def test_too_many_boxes_are_left_out_and_all_is_told(config, folder, capsys):
    """An image of four boxes where three are learnt, one box without area, and a crowd."""
    data = build(config()).data
    summary = data.summaries()["train"]
    assert (summary.examples, summary.too_long) == (24, 1)
    assert summary.left_out == {"boxes without area": 1, "crowds or difficult boxes": 1}
    assert summary.empty["boxes"] == 6
    assert summary.lengths["target"][-1] == 3
    assert inspect(config(), None) == 0
    text = capsys.readouterr().out
    assert "target boxes: median / 90 % / longest" in text
    assert "train: 1 boxes without area and 1 crowds or difficult boxes are left out" in text


@pytest.mark.parametrize(
    ("fit", "size"), [("stretch", (24, 32)), ("inside", (64, 32)), ("cover", (32, 16))]
)
def test_what_is_told_comes_back_to_the_pixels_of_the_file(config, fit, size):
    """A box that was fitted to what the model sees, and is told as it was."""
    run = build(config(data__image_fit=fit, data__image_size=size))
    settings = run.data.settings.images
    assert settings is not None
    box, whole = np.array([[20.0, 10.0, 40.0, 30.0]]), np.zeros((ROWS, COLUMNS, 1), np.uint8)
    _, boxes = images.fitted(whole, box / [COLUMNS, ROWS, COLUMNS, ROWS], settings)
    outputs = {"boxes": boxes, "scores": np.ones(1), "classes": np.zeros(1, int)}
    (row,) = detection._detections(run.trained(None), outputs, (ROWS, COLUMNS))
    np.testing.assert_allclose(row["bbox"], [20, 10, 20, 20])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(data__packing=True), "data.packing=True puts several images"),
        (dict(model__num_queries=2), "num_queries=2 cannot tell .*data.max_target_length=3"),
        (dict(task__box_weights=(1.0, 2.0)), "box_weights=.*three numbers"),
        (dict(model__positions="rotary"), "positions='rotary' has no vectors"),
        (
            dict(model__architecture="encoder_decoder", model__positions="learned"),
            "positions_in='attention' is for models",
        ),
        (dict(data__source="embedded"), "sources that do: scenes, coco, voc"),
    ],
)
def test_what_sets_cannot_do_is_refused(config, changes, words):
    with pytest.raises(ValueError, match=words):
        build(config(**changes)).data.split("test")


@pytest.mark.long
@pytest.mark.usefixtures("optimised")
def test_detr_shapes_is_a_third_of_the_way_after_a_third_of_its_steps(tmp_path):
    """Of 2,300 steps to an AP50 of 0.90; on a part of its scenes, to have them drawn sooner."""
    changes = {"train.steps": 766, "train.evaluate_every": 0, "data.train": ("train[:8000]",)}
    changes |= {"data.test": (), "data.cache_dir": str(tmp_path / "cache")}
    config = load(str(CONFIGS / "detr_shapes.py"), changes)
    assert train(config, tmp_path / "run") == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["validation/ap50"] > 0.90 / 3


@pytest.mark.parametrize("probe", ["duplicate_token", "prefix_match", "sink_mass"])
def test_neither_pixels_nor_queries_have_copies_of_tokens_which_is_told(config, probe, caplog):
    run = build(
        config(train__probes=((probe, 10),), model__num_queries=3, data__max_target_length=3)
    )
    probes(run, run.data.split("validation"))
    expected = [f"train.probes: {probe!r} has nothing to measure in this model"]
    assert caplog.messages == expected * (probe != "sink_mass")
