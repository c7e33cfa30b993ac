"""Stems against convolutions of whole images, and what stands before patches and beyond them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.models import tiny
from transformer_jax.data.read import images
from transformer_jax.models import FAMILIES
from transformer_jax.models.layers import positions
from transformer_jax.models.layers.stems import STEMS, PatchEmbedding

RNG = np.random.default_rng(0)
GRID, SIDE = (3, 4), 4  # rows and columns of patches of the largest image, pixels of a patch
CONVOLUTIONS = "conv_0", "conv_1"  # that halve such a patch to one pixel


def config(stem, **changes) -> Any:
    fields = dict(architecture="encoder_only", head="image_classes", num_labels=3, inputs="patches")
    fields |= dict(stem=stem, patch_size=SIDE, prefix_tokens=0, grid=GRID, positions="sincos_2d")
    fields |= dict(resnet_depths=(2,), resnet_width=4)
    return tiny.config("pre_ln", **(fields | dict(pixel_mean=(0.4, 0.5, 0.6)) | changes))


def batch_of(sizes, prefix=0, length=16, packed=False):
    """Images of so many rows and columns of patches, each in a row or all in one, and as pixels."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, (r * SIDE, c * SIDE, 3), dtype=np.uint8) for r, c in sizes]
    rows = 1 if packed else len(sizes)
    batch = {
        "inputs": np.zeros((rows, length, SIDE**2 * 3), np.uint8),
        "grid": np.zeros((rows, length, 4), np.int32),
        "inputs_segment_ids": np.zeros((rows, length), np.int32),
        "inputs_positions": np.zeros((rows, length), np.int32),
    }
    start = 0
    for number, (size, image) in enumerate(zip(sizes, pixels, strict=True)):
        row, segment, start = (0, number + 1, start) if packed else (number, 1, 0)
        end = start + prefix + len(images.patches(image, SIDE))
        batch["inputs"][row, start + prefix : end] = images.patches(image, SIDE)
        batch["grid"][row, start + prefix : end] = images.grid(*size)
        batch["inputs_segment_ids"][row, start:end] = segment
        batch["inputs_positions"][row, start:end] = np.arange(end - start)
        start = end
    return batch, pixels


def sample(init, *args):
    """Random values for every parameter, so that none is neutral."""
    shapes, draw = nn.unbox(jax.eval_shape(init, jax.random.key(0), *args)), RNG.normal
    return jax.tree.map(lambda leaf: jnp.asarray(draw(0, 0.3, leaf.shape), jnp.float32), shapes)


def embedded(config, batch):
    """What the embedding makes of a batch, and its parameters in float64."""
    module = PatchEmbedding(config)
    args = [batch[n] for n in ("inputs", "grid", "inputs_segment_ids", "inputs_positions")]
    params = sample(module.init, *args)
    vectors = np.asarray(jax.jit(module.apply)(params, *args))
    return vectors, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])


def convolved(x, kernel, bias, stride, pad):
    """A convolution of one image (H, W, C), kernel place by kernel place."""
    side, (height, width, _) = len(kernel), x.shape
    padded = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    rows, columns = ((n + 2 * pad - side) // stride + 1 for n in (height, width))
    output = np.zeros((rows, columns, kernel.shape[-1])) + bias
    for i in range(side):
        for j in range(side):
            part = padded[i : i + stride * rows : stride, j : j + stride * columns : stride]
            output += part[:rows, :columns] @ kernel[i, j]
    return output


@pytest.mark.parametrize(("stem", "atol"), [("patches", 1e-5), ("conv", 1e-4)])
def test_a_stem_is_its_convolutions_of_each_image_as_if_it_were_alone(stem, atol):
    """Also one that is smaller than others: what lies beyond is 0, as around any image. The stride
    of the linear one is its size."""
    settings = config(stem)
    batch, pixels = batch_of([(3, 4), (2, 3), (1, 1)])
    vectors, params = embedded(settings, batch)
    weights = params["stem"]
    for row, image in enumerate(pixels):
        x = (image / 255 - settings.pixel_mean) / settings.pixel_std
        if stem == "patches":
            kernel = weights["kernel"].reshape(SIDE, SIDE, 3, -1)
            x = convolved(x, kernel, weights["bias"], SIDE, 0)
        else:
            assert {name.removesuffix("_bias") for name in weights} == {*CONVOLUTIONS, "projection"}
            for name in CONVOLUTIONS:
                x = np.maximum(convolved(x, weights[name], weights[f"{name}_bias"], 2, 1), 0)
            x = convolved(x, weights["projection"], weights["projection_bias"], 1, 0)
        x = x.reshape(-1, settings.d_model)
        np.testing.assert_allclose(vectors[row, : len(x)], x, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("stem", ["resnet", "resnet_basic"])
def test_a_resnet_is_its_convolutions_norms_and_shortcuts(stem):
    settings = config(stem, patch_size=8, grid=(2, 3), resnet_depths=(1, 2))
    x, grid = RNG.normal(size=(16, 24, 3)).astype(np.float32), images.grid(2, 3)
    args = images.patches(x, 8)[None], grid[None], np.ones((1, 6), bool)
    module = STEMS[stem].module(settings)
    variables = sample(module.init, *args)
    vectors = np.asarray(module.apply(variables, *args))[0]
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])

    def normed(x, weights, stride):
        output = convolved(x, weights["kernel"], 0.0, stride, len(weights["kernel"]) // 2)
        return output * weights["scale"] + weights["offset"]

    x = np.pad(np.maximum(normed(x, params["entry"], 2), 0), ((1, 1), (1, 1), (0, 0)))
    x = np.stack([x[i : i + 8 : 2, j : j + 12 : 2] for i in range(3) for j in range(3)]).max(0)
    for name in ("stage_0_block_0", "stage_1_block_0", "stage_1_block_1"):
        block, before = params[name], x
        count = 3 if stem == "resnet" else 2
        for number in range(count):
            middle = number == (1 if count == 3 else 0)
            stride = 2 if name == "stage_1_block_0" and middle else 1
            x = normed(np.maximum(x, 0), block[f"conv_{number}"], stride)
        if "shortcut" in block:
            before = normed(before, block["shortcut"], 2 if name == "stage_1_block_0" else 1)
        x = np.maximum(before + x, 0)
    assert ("shortcut" in params["stage_0_block_0"]) == (stem == "resnet")
    expected = x.reshape(6, -1) @ params["projection"] + params["projection_bias"]
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("stem", STEMS)
def test_places_before_the_patches_have_vectors_of_their_own(stem):
    settings = config(stem, prefix_tokens=2)
    (batch, _) = batch_of([(3, 4)], prefix=2)
    vectors, params = embedded(settings, batch)
    np.testing.assert_array_equal(vectors[0, :2], params["prefix"])
    assert np.unique(vectors[0, 2:14], axis=0).shape == (12, settings.d_model)


@pytest.mark.parametrize(
    ("stem", "changes", "words"),
    [
        ("resnet", {"patch_size": 8}, "stages, which make a vector of 4x4 pixels"),
        ("resnet", {"resnet_depths": (0,)}, "stages, which make a vector of 4x4 pixels"),
        ("conv", {"patch_size": 6}, "model.stem='conv' halves model.patch_size="),
        ("conv", {"d_model": 15, "head_dim": 4}, "model.stem='conv' halves model.patch_size="),
    ],
)
def test_a_stem_that_does_not_make_a_vector_of_each_patch_is_refused(stem, changes, words):
    """Before anything is computed: its shapes are asked for alone."""
    settings = config(stem, positions="learned", **changes)
    patches = np.zeros((1, 16, settings.patch_size**2 * 3), np.uint8)
    grid, ids = np.zeros((1, 16, 4), np.int32), np.zeros((1, 16), np.int32)
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(PatchEmbedding(settings).init, jax.random.key(0), patches, grid, ids, ids)


# Positions by rows and columns


def sines(name, place, d_model):
    """One vector, number by number."""
    row, column, rows, columns = place
    if name == "sincos_2d":
        frequencies = [10000 ** (-i / (d_model / 4 - 1)) for i in range(d_model // 4)]
        return [f(at * w) for at in (column, row) for f in (np.sin, np.cos) for w in frequencies]
    vector = []
    for at, count in ((row, rows), (column, columns)):
        share = (at + 1) / (count + 1e-6) * 2 * np.pi
        for i in range(d_model // 2):
            angle = share / 10000 ** (2 * (i // 2) / (d_model / 2))
            vector.append(np.cos(angle) if i % 2 else np.sin(angle))
    return vector


@pytest.mark.parametrize("name", ["sincos_2d", "sine_2d"])
def test_sines_of_rows_and_columns_are_those_of_the_papers_code(name):
    batch, _ = batch_of([(3, 4), (2, 2)], prefix=1)
    function = getattr(positions, name)
    encodings = np.asarray(function(None, jnp.asarray(batch["grid"]), 16))
    for vectors, grid in zip(encodings, batch["grid"], strict=True):
        for vector, place in zip(vectors, grid, strict=True):
            expected = sines(name, place, 16) if place[2] else np.zeros(16)
            np.testing.assert_allclose(vector, expected, atol=1e-5)


# Whole models


@pytest.mark.parametrize("kind", positions.POSITIONS)
def test_images_of_several_sizes_packed_in_a_row_are_seen_as_if_alone(kind):
    settings = config("patches", prefix_tokens=1, pooling="first", positions=kind, max_length=40)
    sizes = [(2, 3), (3, 4), (1, 2)]
    (packed, _), (alone, _) = (batch_of(sizes, 1, 40, packed=packed) for packed in (True, False))
    model = tiny.model(settings)
    params = sample(functools.partial(FAMILIES["transformer"].init, model), packed)
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    together, apart = (apply({"params": params}, batch) for batch in (packed, alone))
    starts = np.flatnonzero(packed["inputs_positions"][0] == 0)[:3]
    tiny.assert_close(together[0, starts], apart[:, 0])
    assert np.ptp(np.asarray(apart[:, 0]), axis=0).max() > 1e-2


def test_the_mean_of_an_image_is_of_its_patches_alone():
    settings = config("patches", prefix_tokens=2, pooling="mean")
    batch, _ = batch_of([(3, 4), (2, 3)], prefix=2)
    model = tiny.model(settings)
    params = sample(functools.partial(FAMILIES["transformer"].init, model), batch)
    apply = functools.partial(model.apply, method="embed", mutable=["intermediates"])
    vectors, variables = jax.jit(apply)({"params": params}, batch)
    encoded = np.asarray(variables["intermediates"]["encoder_output"])
    for row, grid in enumerate(batch["grid"]):
        patches = encoded[row, grid[:, 2] > 0]
        tiny.assert_close(vectors[row, 0], patches.mean(axis=0))
        assert np.abs(encoded[row, 0] - patches.mean(axis=0)).max() > 0.1
