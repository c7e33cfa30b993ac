"""Imported models of images compute what transformers computes, and exported ones load there."""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from tests.data.read.images_test import settings as image_settings
from tests.models import tiny
from transformer_jax.commands import restore
from transformer_jax.config.build import built
from transformer_jax.config.load import load
from transformer_jax.configs import default, detr_r50
from transformer_jax.data.read.images import FITS, NO_BOXES, fitted
from transformer_jax.models.layers import positions
from transformer_jax.tools.convert import FAMILIES, commands, images
from transformer_jax.tools.convert.family import Settings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)
pytestmark = pytest.mark.long

MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
LABELS = {0: "cat", 1: "dog", 2: "N/A", 3: "N/A"}
NAMES = ("cat", "dog", "N/A 2", "N/A 3")
VIT = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    layer_norm_eps=0.01,
    image_size=[16, 24],
    patch_size=8,
)
DETR = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    num_queries=6,
    use_timm_backbone=False,
)


# The channels of the stages of a backbone, by the kind of its blocks.
CHANNELS = {"bottleneck": [32, 64, 128, 256], "basic": [8, 16, 32, 64]}
# Of images that are batched together: rows and columns.
SIZES = {"vit": [(16, 24), (16, 24)], "detr": [(64, 96), (96, 64)]}


def perturbed(model):
    """The model with no bias of 0 and no scale of 1, which would hide lost and swapped ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "running_var" in name:
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif tensor.is_floating_point():
                noise = torch.empty_like(tensor).normal_(generator=generator)
                # Queries and keys so large that queries look at different places.
                sharp = "query_position" in name or re.search(r"\.[qk]_proj\.weight", name)
                size = 1.0 if sharp else 0.02 if tensor.ndim == 4 else 0.1
                tensor.add_(size * noise)
    return model.eval()


def random_model(name):
    """A random model: "vit", or "detr" with the kind of its backbone's blocks."""
    torch.manual_seed(0)
    if name == "vit":
        config = transformers.ViTConfig(**VIT, id2label=LABELS)
        return perturbed(transformers.ViTForImageClassification(config))
    kind = name.split()[1]
    sizes = dict(embedding_size=8, hidden_sizes=CHANNELS[kind], depths=[1, 1, 2, 1])
    backbone = transformers.ResNetConfig(**sizes, layer_type=kind, out_features=["stage4"])
    config = transformers.DetrConfig(**DETR, backbone_config=backbone, id2label=LABELS)
    return perturbed(transformers.DetrForObjectDetection(config))


class Imported(NamedTuple):
    """A model of theirs, its folder, the work directory of its import, and files of images."""

    model: Any
    theirs: Path
    workdir: Path
    files: list[str]
    pixels: list[np.ndarray]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A function from the name of a model."""

    @functools.cache
    def run(name):
        home = tmp_path_factory.mktemp("model")
        model, draw = random_model(name), np.random.default_rng(0)
        model.save_pretrained(home / "theirs")
        kind = name.split()[0]
        size = {"height": 16, "width": 24} if kind == "vit" else {"shortest_edge": 96}
        size |= {} if kind == "vit" else {"longest_edge": 100}
        settings = {"size": size, "image_mean": MEAN, "image_std": STD, "rescale_factor": 1 / 255}
        (home / "theirs" / "preprocessor_config.json").write_text(json.dumps(settings))
        assert commands.import_(home / "ours", str(home / "theirs")) == 0
        pixels = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for size in SIZES[kind]]
        files = [str(home / f"{number}.png") for number in range(len(pixels))]
        for file, one in zip(files, pixels, strict=True):
            Image.fromarray(one).save(file)
        return Imported(model, home / "theirs", home / "ours", files, pixels)

    return run


def theirs(model, pixels):
    """Logits, and boxes if there are any, of images in one batch."""
    shape = [max(sides) for sides in zip(*(one.shape for one in pixels), strict=True)]
    batch = np.zeros((len(pixels), *shape), np.float32)
    mask = np.zeros(batch.shape[:3], np.int64)
    for number, one in enumerate(pixels):
        rows, columns, _ = one.shape
        batch[number, :rows, :columns] = (one / 255 - MEAN) / STD
        mask[number, :rows, :columns] = 1
    values = torch.tensor(batch).permute(0, 3, 1, 2)
    with torch.no_grad():
        if isinstance(model, transformers.ViTForImageClassification):
            return [model(values).logits.numpy()]
        outputs = model(values, pixel_mask=torch.tensor(mask))
    return [outputs.logits.numpy(), outputs.pred_boxes.numpy()]


def ours(one, changes=None):
    """The same of an imported model, with other settings."""
    config = load(str(one.workdir / "config.json"), changes or {})
    with jax.default_matmul_precision("highest"), built(config, one.workdir) as run:
        folders = restore.find(run, one.workdir, None)
        params = restore.load_parameters(folders, run.abstract_state.params)
        batch: Any = run.data.batch(one.files)
        outputs: Any = run.outputs(params, batch, None, ())[0].arrays()
    if run.task.recipe.name == "detection":
        return [np.asarray(part[-1]) for part in (outputs.logits, outputs.boxes)]
    return [np.asarray(outputs[:, 0])]


def furthest(outputs, expected):
    """The largest difference, as a share of the largest value."""
    pairs = zip(outputs, expected, strict=True)
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)


MODELS = ["vit", "detr bottleneck", "detr basic"]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_transformers(imported, name):
    one = imported(name)
    expected = theirs(one.model, one.pixels)
    assert furthest(ours(one), expected) <= 1e-5
    # Images and queries (of ViT: classes) differ by more than that.
    assert min(np.ptp(part, axis=axis).max() for part in expected for axis in (0, 1)) > 5e-3


def test_their_folder_is_loaded_and_pixels_are_images(imported):
    one = imported("vit")
    run = tj.load(one.theirs)
    batch = run.batch(one.pixels, [NAMES[1], NAMES[0]])
    assert furthest([run.logits(batch)[:, 0]], theirs(one.model, one.pixels)) <= 1e-5
    alone = run.batch(one.pixels[1])
    assert all(np.array_equal(alone[name][0], batch[name][1]) for name in alone)
    labels = tj.load(one.workdir).generate(one.files)
    assert run.generate(one.pixels) == run.generate(one.files) == labels
    assert run.generate(one.pixels[0]) in run.labels
    with pytest.raises(tj.Error, match="image 0 is float64 of shape"):
        run.batch(np.zeros((1, 16, 24, 3)))


def swapped(patch):
    """Rows and columns of the places of patches in each other's stead."""

    def places(module, grid, d_model):
        return positions.sine_2d(module, grid[..., np.array([1, 0, 3, 2])], d_model)

    row = dataclasses.replace(positions.POSITIONS["sine_2d"], places=places)
    patch.setitem(positions.POSITIONS, "sine_2d", row)


def padded_by_the_library(patch):
    """What is padded at strides of 2 at the end alone."""
    convolve = jax.lax.conv_general_dilated

    def same(*arguments, padding, **more):
        return convolve(*arguments, padding="SAME", **more)

    patch.setattr(jax.lax, "conv_general_dilated", same)


CONTROLS = [
    ("vit", {"model.activation": "gelu_tanh"}),
    ("vit", {"model.norm_epsilon": 1e-5}),
    ("vit", {"model.pixel_mean": (0.5,)}),
    ("vit", {"model.pooling": "mean"}),
    ("detr bottleneck", {"model.norm_epsilon": 1e-3}),
    ("detr bottleneck", {"model.positions_in": "stream"}),
    ("detr bottleneck", {"model.positions": "sincos_2d"}),
    ("detr bottleneck", swapped),
    ("detr bottleneck", padded_by_the_library),
]


@pytest.mark.parametrize(("name", "change"), CONTROLS)
def test_and_not_by_chance(imported, monkeypatch, name, change):
    one, changes = imported(name), change
    if callable(change):
        change(monkeypatch)
        changes = None
    assert furthest(ours(one, changes), theirs(one.model, one.pixels)) > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_loads_there_and_back(imported, name, tmp_path):
    one = imported(name)
    config = load(str(one.workdir / "config.json"))
    assert tuple(json.loads((one.workdir / "labels.json").read_text())) == NAMES
    back = tmp_path / "theirs"
    assert commands.export(config, one.workdir, None, str(back)) == 0
    model, report = type(one.model).from_pretrained(back, output_loading_info=True)
    assert not any(report.values()), report
    assert tuple(model.config.id2label.values()) == NAMES
    assert furthest(theirs(model.eval(), one.pixels), theirs(one.model, one.pixels)) <= 1e-5
    processor = transformers.AutoImageProcessor.from_pretrained(back)
    assert list(processor.image_mean) == MEAN and list(processor.image_std) == STD
    assert commands.import_(tmp_path / "ours", str(back)) == 0
    before, after = (work / "config.json" for work in (one.workdir, tmp_path / "ours"))
    assert before.read_text() == after.read_text()
    again = one._replace(workdir=tmp_path / "ours")
    # Of frozen norms not the bits come back: theirs are four numbers for each two of ours.
    assert furthest(ours(again), ours(one)) <= (0 if name == "vit" else 1e-5)


def read(kind, folder, file):
    """Our settings of a config.json that has this preprocessor_config.json beside it."""
    (folder / "preprocessor_config.json").write_text(json.dumps(file))
    values = {"detr": DETR, "vit": VIT | {"image_size": 32}}[kind]
    return FAMILIES[kind].settings(Settings(values, str(folder / "config.json"), {}))


@pytest.mark.parametrize(
    ("file", "size", "fit"),
    [
        ({"size": 480, "max_size": 640}, (480, 640), "inside"),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, (800, 1312), "inside"),
        ({"size": {"height": 320, "width": 20}}, (320, 32), "stretch"),
        ({"size": [64, 96]}, (64, 96), "stretch"),
        ({"image_mean": 0.5}, (800, 1312), "inside"),
    ],
)
def test_sizes_of_images_are_read_in_every_spelling(tmp_path, file, size, fit):
    settings = read("detr", tmp_path, file)
    assert (settings["data.image_size"], settings["data.image_fit"]) == (size, fit)
    assert len(settings["model.pixel_mean"]) == (1 if "image_mean" in file else 3)


@pytest.mark.parametrize(
    ("kind", "file", "words"),
    [
        ("detr", {"size": {"shortest_edge": "x"}}, "size: shortest_edge='x' is not made of"),
        ("detr", {"size": [1, 2, 3]}, "size=.* is not rows and columns"),
        ("detr", {"size": {"max_height": 9}}, "size: max_height=9 is not known here"),
        ("detr", {"do_rescale": False}, "preprocessor_config.json: do_rescale=False has no"),
        ("vit", {"size": 48}, r"image_size=\(32, 32\) of config.json is one size"),
        ("vit", {"size": {"shortest_edge": 32}}, r"image_size=\(32, 32\) of config.json is one"),
    ],
)
def test_images_that_no_model_here_sees_are_refused(tmp_path, kind, file, words):
    with pytest.raises(ValueError, match=words):
        read(kind, tmp_path, file)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 32}, ""),
        ({"size": {"height": 32, "width": 32}, "do_normalize": False}, ""),
        ({"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 32}, ""),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 32}, "crop_size=32"),
        ({"size": 32, "resample": 0}, "resample=0 is not what is done here"),
        ({"do_resize": False}, "do_resize=False is not what is done here"),
    ],
)
def test_images_are_seen_as_there_or_it_is_said(tmp_path, caplog, changes, words):
    """Of a wide image; what is not warned of is the same but for rounding to bytes."""
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)).resize((96, 64))
    there = {"image_processor_type": "ViTImageProcessor", "image_mean": MEAN, "image_std": STD}
    settings, said = read("vit", tmp_path, there | changes), caplog.text
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    values = processor(smooth, return_tensors="np")["pixel_values"]
    pixels = np.asarray(values)[0].transpose(1, 2, 0)
    sides, fit = settings["data.image_size"], settings["data.image_fit"]
    fitting = image_settings(size=sides, fit=fit, patch_size=8)
    ours, _ = fitted(np.asarray(smooth), NO_BOXES, fitting)
    ours = (ours / 255 - settings["model.pixel_mean"]) / settings["model.pixel_std"]
    same = pixels.shape == ours.shape and np.abs(pixels - ours).max() < 0.03
    assert same == (not words) and (words in said if words else not said)


@pytest.mark.parametrize("shape", [(480, 640), (640, 480), (500, 1000), (1000, 500), (400, 400)])
def test_a_detr_sees_either_orientation_as_large_as_there(shape):
    """But for whole patches, 32 pixels a side, down to which the longest side is cut too."""
    settings = FAMILIES["detr"].settings(Settings(DETR, "config.json", {}))
    size = FITS["inside"](shape[0], shape[1], settings["data.image_size"], 32)[1]
    processor = transformers.DetrImageProcessor()
    image = Image.fromarray(np.zeros((*shape, 3), np.uint8))
    there = processor(image, return_tensors="np")["pixel_values"].shape[2:]
    assert max(abs(a - b) for a, b in zip(size, there, strict=True)) <= 32


def test_a_detr_that_is_imported_steps_as_ours():
    optimizer = detr_r50.get_config().optimizer
    settings = FAMILIES["detr"].settings(Settings(DETR, "config.json", {}))
    for key in ("name", "weight_decay", "groups"):
        assert settings[f"optimizer.{key}"] == optimizer[key]


def test_one_mean_of_all_channels_is_written_for_each(tmp_path):
    changes = {"task.name": "image_classification", "model.architecture": "encoder_only"}
    config = load(default.__file__, changes | {"model.pixel_mean": (0.25,)})
    (tmp_path / "labels.json").write_text('["a", "b"]')
    with built(config, tmp_path) as run:
        settings = run.data.settings.images
        assert settings is not None
        images.save(tmp_path, "ViTForImageClassification", settings, run.model.config)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert list(processor.image_mean) == [0.25] * 3 and list(processor.image_std) == [0.5] * 3
    assert dict(processor.size) == {"height": 224, "width": 224}
    assert images.channels(settings, {}) == {"num_channels": 3}
    with pytest.raises(ValueError, match="data.channels=3 has no counterpart there, only 1"):
        images.channels(settings, {"num_channels": 1})
    cover = dataclasses.replace(settings, fit="cover")
    images.save(tmp_path, "ViTForImageClassification", cover, run.model.config)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert processor.do_center_crop and dict(processor.crop_size) == {"height": 224, "width": 224}
    for size, theirs in (((224, 32), {}), ((224, 224), {"num_queries": 9})):
        with pytest.raises(ValueError, match="data.image_fit='cover' .* has no counterpart there"):
            images.channels(dataclasses.replace(cover, size=size), theirs)


def test_positions_in_every_attention_are_no_vit():
    changes = dict(inputs="patches", grid=(2, 3), prefix_tokens=1, positions="learned")
    for place in ("stream", "attention"):
        config = tiny.config("pre_ln", architecture="encoder_only", positions_in=place, **changes)
        unfit = FAMILIES["vit"].unfit(config)
        assert ("positions_in" in unfit) == (place == "attention")


@pytest.mark.parametrize("older", [True, False])
def test_a_network_that_is_named_alone_has_its_published_sizes(older):
    backbone = {"use_timm_backbone": True, "backbone": "resnet101", "backbone_config": None}
    backbone |= {"use_pretrained_backbone": True, "backbone_kwargs": {"in_chans": 3}}
    backbone |= {"classifier_dropout": 0.0, "max_position_embeddings": 1024, "num_hidden_layers": 2}
    if not older:
        backbone = {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet101"}}
    theirs = Settings(transformers.DetrConfig(**DETR).to_dict() | backbone, "config.json", {})
    settings = FAMILIES["detr"].settings(theirs)
    theirs.check_known(FAMILIES["detr"].idle)
    assert settings["model.resnet_depths"] == (3, 4, 23, 3) and settings["model.stem"] == "resnet"
    assert settings["model.patch_size"] == 32 and settings["data.image_size"] == (800, 1312)
