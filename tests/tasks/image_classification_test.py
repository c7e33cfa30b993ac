"""Images are trained on, scored, named and embedded; what is drawn of them, and refused."""

import itertools
import json
import logging
import pickle

import numpy as np
import pytest
from PIL import Image

from tests.data import drawn_images
from tests.tasks import small
from tests.whole.command_line import records
from transformer_jax.commands.train import train
from transformer_jax.config.build import build
from transformer_jax.config.load import CONFIGS, load
from transformer_jax.configs import default
from transformer_jax.data.read import images
from transformer_jax.tasks import TASKS
from transformer_jax.tools.show.inspect import inspect

CHANGES = small.IMAGES | {
    "data.source": "folder",
    "data.image_size": (8, 12),
    "data.augment": ("shift", "flip"),
    "data.batch_size": 16,
    "evaluate.batch_size": 8,
    "model.architecture": "encoder_only",
    "model.pooling": "first",
    "model.positions": "learned",
    "task.name": "image_classification",
    "optimizer.learning_rate": 0.01,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return drawn_images.write(tmp_path_factory.mktemp("images"))


@pytest.fixture
def config(folder):
    """changes -> the config of a small run on the drawn images."""
    return small.configs(folder, CHANGES)


def test_what_a_model_says_of_images_is_scored_and_given_for_their_paths(config):
    run = build(config())
    params = small.initial(run)
    # A head that starts at 0 says the same of all.
    draw = np.random.default_rng(0).normal(size=params["label_head"]["labels"].shape)
    assert not np.any(params["label_head"]["labels"])
    params["label_head"]["labels"] = draw.astype(np.float32)
    split = run.data.split("test")
    scores, samples = small.score(run, params, split)
    paths, expected = (split.examples[key] for key in ("image", "label"))
    labels = [label for (label,) in small.results(run, params, paths)]
    assert small.results(run, params, [paths[2], "", paths[0]]) == [[labels[2]], [""], [labels[0]]]
    right = [a == b for a, b in zip(labels, expected, strict=True)]
    assert scores["accuracy"] == pytest.approx(np.mean(right)) and scores["top5"] == 1
    assert set(labels) <= set(run.data.labels) and samples[0] == (paths[0], expected[0], labels[0])
    for batch, numbers in split.batches:
        best = np.argmax(small.log_probabilities(run, params, batch)[:, 0], axis=-1)
        for number, label in zip(numbers, best, strict=True):
            assert number < 0 or labels[number] == run.data.labels[label]
    vectors = run.trained(params).embed(paths)
    assert vectors.shape == (len(paths), 16) and np.unique(vectors, axis=0).shape == vectors.shape
    with pytest.raises(OSError, match="nowhere.png"):
        small.results(run, params, ["nowhere.png"])


@pytest.mark.long
@pytest.mark.usefixtures("compiled_once")
def test_a_killed_run_goes_on_and_another_goes_on_from_it_with_larger_images(
    config, tmp_path, capsys
):
    """The learned positions of the second are resampled; all else is taken as it is."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    size = {"model__max_length": 9}
    assert train(config(**size), whole) == 0
    assert train(config(**size, train__steps=20), resumed) == train(config(**size), resumed) == 0
    assert records(resumed) == records(whole)
    results = json.loads((resumed / "results.json").read_text())
    assert results["status"] == "finished" and results["test/accuracy"] > 0.8

    larger = {"data__image_size": (16, 24), "model__max_length": 25}
    second = config(**larger, checkpoint__init_from=str(whole), train__steps=1)
    assert train(second, tmp_path / "second") == 0
    assert "positions/table: for another size" in capsys.readouterr().out
    report = json.loads((tmp_path / "second" / "init_from.json").read_text())
    assert report["resampled"] == ["positions/table"] and not report["new"]

    shifted = {"model__prefix_tokens": 3, "checkpoint__init_from": str(whole), "train__steps": 1}
    assert train(config(**size, **shifted), tmp_path / "third") == 0
    report = json.loads((tmp_path / "third" / "init_from.json").read_text())
    assert "other places stand before" in report["left"]["positions/table"]


@pytest.mark.long
def test_vit_digits_is_a_third_of_the_way_after_sixty_steps(tmp_path):
    """Which are larger and without shifts, since a test has no time for more."""
    changes = {"train.steps": 60, "optimizer.warmup_steps": 20, "optimizer.learning_rate": 3e-3}
    changes |= {"data.augment": (), "data.cache_dir": str(tmp_path)}
    assert train(load(str(CONFIGS / "vit_digits.py"), changes), tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "results.json").read_text())["test/accuracy"] > 1 / 3


# Batches


def batches_of(data, count):
    return list(itertools.islice(data.train_streams(), count))


def test_training_augments_anew_every_epoch(config):
    """Each of 24 images is once in each batch."""

    def epochs(**changes):
        data = build(config(data__batch_size=24, data__streams=2, **changes)).data
        return [{row.tobytes() for row in batch["inputs"]} for batch in batches_of(data, 2)]

    first, second = epochs()
    assert len(first & second) < 12
    first, second = epochs(data__augment=())
    assert first == second and len(first) == 24


def test_evaluation_draws_nothing_and_has_each_image_with_its_label(config, folder):
    data = build(config(data__image_fit="cover", model__positions="sincos_2d")).data
    split = data.split("test")
    count, settings = 0, data.settings.images
    assert settings is not None
    for batch, numbers in split.batches:
        for row, number in enumerate(numbers):
            if number < 0:
                assert not batch["inputs_segment_ids"][row].any()
                continue
            name, label = (split.examples[key][number] for key in ("image", "label"))
            pixels = np.asarray(Image.open(name))[..., None]
            expected, _ = images.fitted(pixels, images.NO_BOXES, settings)
            shown = images.joined(batch["inputs"][row], batch["grid"][row], settings)
            np.testing.assert_array_equal(shown, expected)
            assert data.labels[batch["labels"][row, 0] - 1] == label
            assert not batch["labels"][row, 1:].any() and not batch["grid"][row, 0].any()
            count += 1
    assert count == drawn_images.COUNTS["test"]


def test_images_of_several_sizes_share_rows(config):
    changes = dict(data__image_fit="inside", data__packing=True, data__row_source_length=20)
    changes |= dict(data__batch_size=4, data__streams=2)
    data = build(config(**changes, model__positions="sine_2d")).data
    sizes, images_seen = set(), 0
    for batch in batches_of(data, 6):
        shapes = {name: (v.shape, str(v.dtype)) for name, v in batch.items()}
        assert shapes == data.batch_shapes()
        starts = (batch["inputs_positions"] == 0) & (batch["inputs_segment_ids"] > 0)
        np.testing.assert_array_equal(batch["labels"] > 0, starts)
        sizes |= {tuple(place[2:]) for row in batch["grid"] for place in row if place[2]}
        images_seen += starts.sum()
        for grid, segments in zip(batch["grid"], batch["inputs_segment_ids"], strict=True):
            for segment in range(1, segments.max() + 1):
                places = grid[segments == segment]
                np.testing.assert_array_equal(places[1:], images.grid(*places[-1, 2:]))
    assert len(sizes) > 1 and images_seen > 6 * 4


def test_pixels_are_kept_once_whatever_is_drawn_and_however_patches_are(config, folder):
    cache = folder / "cache" / "sets"
    build(config()).data.train_streams()
    before = {path.name for path in cache.iterdir()}
    for changes in ({"data__augment": ()}, {"model__patch_size": 2}, {"model__prefix_tokens": 0}):
        settings = changes | {"model__positions": "sincos_2d", "model__pooling": "mean"}
        build(config(**settings)).data.train_streams()
    assert {path.name for path in cache.iterdir()} == before
    build(config(data__image_fit="cover")).data.train_streams()
    assert {path.name for path in cache.iterdir()} != before


def test_inspection_tells_sizes_and_shows_nine_images(config, capsys):
    assert inspect(config(), None) == 0
    out = capsys.readouterr().out
    assert "8x10 / 8x14 / 12x14" in out and "8x12 / 8x12 / 8x12" in out and "label 'dark'" in out
    *_, line = out.splitlines()
    with Image.open(line.rpartition(" ")[2]) as sheet:
        assert sheet.size[0] >= 3 * 12 and sheet.size[1] >= 3 * 8
        assert len(np.unique(np.asarray(sheet))) > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__image_size": (8, 2**15)}, "data.image_size=.8, 32768. is not.*up to 16384"),
        ({"data__image_fit": "inside"}, "model.positions='learned'.*'learned_2d'"),
        ({"model__stem": "conv", "data__packing": True}, "model.stem='conv'.*data.packing=True"),
        ({"data__packing": True, "data__row_source_length": 6}, "data.row_source_length=6.* has 7"),
        ({"model__pixel_mean": (0.5, 0.5)}, "model.pixel_mean=.0.5, 0.5. is not.*data.channels=1"),
        ({"model__pixel_std": (0.0,)}, "model.pixel_std=.0.0,.*more than 0"),
        ({"model__max_length": 6}, "data.image_size in patches = 7.*model.max_length=6"),
        ({"model__positions": "sine_2d", "model__d_model": 18}, "a multiple of 4"),
        (
            {"model__positions": "learned_2d", "data__image_size": (8, 204)},
            "model.positions='learned_2d' knows 50",
        ),
        ({"data__source": "tsv"}, "does not yield image and label.*folder, digits"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        build(config(**changes)).data.train_streams()


def test_recipes_can_be_sent_to_processes():
    """Which encode, where there is much of it."""
    for task in TASKS.values():
        assert pickle.loads(pickle.dumps(task.recipe)) == task.recipe


def test_texts_have_no_rows_and_columns(config):
    with pytest.raises(ValueError, match="model.positions='sincos_2d' are rows and columns"):
        build(load(default.__file__, {"model.positions": "sincos_2d"}))


def test_a_broken_file_ends_a_preparation_with_its_name(tmp_path, caplog):
    folder = drawn_images.write(tmp_path)
    (folder / "train" / "dark" / "001.png").write_bytes(b"no image")
    config = small.configs(folder, CHANGES)
    with pytest.raises(ValueError, match=r"train/dark/001\.png: expected a format"):
        build(config()).data.train_streams()
    with caplog.at_level(logging.WARNING):
        summary = build(config(data__skip_bad_lines=True)).data.summaries()["train"]
    assert summary.examples == drawn_images.COUNTS["train"] - 1 and "001.png" in caplog.text
