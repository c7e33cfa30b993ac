"""The attention page of images: its data, what places have in common, and the page in a browser."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data import drawn_images
from tests.models import tiny
from tests.models.layers.stems_test import sines
from tests.tasks import detection_test, image_classification_test, small
from tests.tools.pages import page_data
from tests.tools.pages.page_data import array
from transformer_jax.config.build import build
from transformer_jax.data.corpora.scenes import scene
from transformer_jax.data.read import images
from transformer_jax.data.read.pictures import from_file
from transformer_jax.tools.pages import pictures
from transformer_jax.tools.pages.positions import figures

OF_IMAGES = image_classification_test.CHANGES | {
    "data.image_size": (16, 16),
    "data.image_fit": "inside",
    "model.positions": "sincos_2d",
    "model.num_layers": 2,
}
OF_BOXES = detection_test.CHANGES | {
    "data.source": "scenes",
    "data.name": "shapes",
    "data.train": ("train[:16]",),
    "data.validation": ("validation[:8]",),
    "data.test": ("test[:4]",),
    "data.image_size": (16, 16),
    "data.max_target_length": 4,
    "model.num_layers": 2,
    "model.num_queries": 5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return drawn_images.write(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def of_boxes(folder):
    return untrained(folder, OF_BOXES)


def untrained(folder, changes):
    """A run and its first parameters."""
    run = build(small.configs(folder, changes)())
    return run, small.initial(run)


def content(run, params, lines):
    """What the page holds."""
    return page_data.data(pictures.look(run, run.trained(params), lines, "a"))


def test_images_of_several_sizes_have_maps_of_their_own_patches(folder):
    """Each is shown as the model sees it, and next to another as it is alone."""
    run, params = untrained(folder, OF_IMAGES)
    settings: Any = run.data.settings.images
    paths = [str(folder / f"test/{drawn_images.label(n)}/{n:03}.png") for n in (2, 3)]
    page = content(run, params, [paths[0], "", paths[1]])
    assert page["texts"][1] == content(run, params, paths[1:])["texts"][0]
    assert page["labels"] == list(drawn_images.LABELS) and page["boxes"] is None
    assert page["texts"][0]["grid"] != page["texts"][1]["grid"]
    for path, view in zip(paths, page["texts"], strict=True):
        pixels = images.decode(from_file(folder / path), 1)
        fitted, _ = images.fitted(pixels, images.NO_BOXES, settings)
        png = view["png"].removeprefix("data:image/png;base64,")
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
        np.testing.assert_array_equal(image, fitted[..., 0])
        rows, columns = view["grid"]
        assert image.shape == (4 * rows, 4 * columns)
        weights = array(view["maps"][0]["weights"])
        assert weights.shape == (2, 2, 1 + rows * columns, 1 + rows * columns)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.long
def test_queries_that_change_places_change_them_on_the_page(of_boxes, tmp_path):
    """Without lines it shows images of validation, as it does those of their files."""
    (run, params), order = of_boxes, np.array([3, 0, 4, 2, 1])
    table = {"table": params["queries"]["table"][order]}
    page, moved = (content(run, tree, []) for tree in (params, params | {"queries": table}))
    Image.fromarray(scene("shapes", "validation", 5).pixels).save(tmp_path / "5.png")
    (alone,) = content(run, params, [str(tmp_path / "5.png")])["texts"]
    assert page["texts"][5] == alone | {"line": "validation-5"} and len(page["texts"]) == 6
    tiny.assert_close(array(moved["boxes"]), array(page["boxes"])[order])
    for number, (before, after) in enumerate(zip(page["texts"], moved["texts"], strict=True)):
        *_, cross = (array(one["weights"]) for one in before["maps"])
        encoder, decoder, cross_after = (array(one["weights"]) for one in after["maps"])
        assert encoder.shape == (2, 2, 16, 16) and decoder.shape == (2, 2, 5, 5)
        tiny.assert_close(cross_after, cross[:, :, order])
        tiny.assert_close(after["logits"], np.array(before["logits"])[order])
        centre, sides = np.split(np.array(before["boxes"]), 2, axis=1)
        corners = np.concatenate([centre - sides / 2, centre + sides / 2], axis=1)
        tiny.assert_close(array(page["boxes"])[:, number], corners)


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos_2d", "sine_2d"])
def test_each_two_patches_are_compared_whatever_stands_before_them(kind):
    config = tiny.config(
        architecture="encoder_only", inputs="patches", grid=(2, 3), prefix_tokens=2, positions=kind
    )
    rng = np.random.default_rng(0)
    tables = {"table": rng.normal(size=(12, 16))}
    tables |= {name: rng.normal(size=(50, 8)) for name in ("columns", "rows")}
    vector = {
        "learned": lambda row, column: tables["table"][2 + 3 * row + column],
        "learned_2d": lambda row, column: [*tables["columns"][column], *tables["rows"][row]],
    }.get(kind, lambda row, column: sines(kind, (row, column, 2, 3), 16))
    vectors = [vector(row, column) for row, column in np.ndindex(2, 3)]
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    first, *_ = figures(config, {"positions": tables}, 0)
    np.testing.assert_allclose(array(first["values"]), units @ units.T, atol=1e-5)
    assert first["tiles"] == (2, 3)


@pytest.mark.long
def test_boxes_and_patches_are_chosen_by_mouse_and_keys(of_boxes, opened):
    run, params = of_boxes
    tab = opened(pictures.look(run, run.trained(params), [], "Pictures"))
    title, said, scene = (tab.locator(name) for name in ("#one-head", "#said", ".scene"))
    assert title.inner_text().startswith("Cross") and tab.locator(".heads button").count() == 6
    fourth = tab.get_by_role("group", name="Queries").get_by_role("button").nth(3)
    fourth.click()
    assert f"{fourth.inner_text()}\u2069 looks at" in said.inner_text()
    assert scene.locator("g").last.text_content() == fourth.inner_text()
    tab.mouse.move(0, 0)
    tab.keyboard.press(".")
    assert "\u20685: " in said.inner_text()
    tab.get_by_role("button", name="Layer 2, mean of heads").click()
    assert title.inner_text() == "Cross (decoder to encoder): layer 2, mean of heads"
    scene.locator("g rect").last.click()
    assert "looks at" in said.inner_text()
    tab.keyboard.press("k")
    scene.click(position={"x": 400, "y": 50})
    assert said.inner_text().startswith("\u2068(1, 4)\u2069 looks at")
    with tab.expect_download() as download:
        tab.keyboard.press("s")
    assert "data:image/png" in download.value.path().read_text("utf-8")
