"""The loss of a set against transformers' loss, and of its parts."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.defaults import loss_settings
from transformer_jax.data.prepare.pictures import UNIT
from transformer_jax.models.family import Outputs
from transformer_jax.models.layers.heads import Boxes
from transformer_jax.training import detection
from transformer_jax.training.losses import Loss

L, B, N, M, C = 2, 4, 6, 3, 3


def a_loss(**changes):
    settings = loss_settings(**changes)
    return Loss(detection.set_loss, detection.totals, detection.means, settings)


def case(counts=(2, 0, 3, 1), images=B):
    """Outputs, and a batch of images with so many boxes; the rows after `images` hold nothing."""
    rng, rows = np.random.default_rng(0), len(counts)
    predictions = Boxes(
        jnp.array(rng.normal(size=(L, rows, N, C + 1)), jnp.float32),
        jnp.array(rng.uniform(0.1, 0.9, (L, rows, N, 4)), jnp.float32),
    )
    real = np.arange(M) < np.array(counts)[:, None]
    batch = {
        "targets": np.where(real, rng.integers(1, C + 1, (rows, M)), 0).astype(np.int32),
        "targets_segment_ids": real.astype(np.int32),
        "boxes": np.where(real[..., None], rng.integers(6_000, 60_000, (rows, M, 4)), 0),
        "inputs_segment_ids": np.int32(np.arange(rows)[:, None] < images) * np.ones((1, 2), int),
    }
    return Outputs(predictions), batch


@functools.cache
def compiled(loss):
    return jax.jit(loss)


@pytest.fixture
def authors():
    """The authors' losses, in PyTorch."""
    return pytest.importorskip("transformers.loss.loss_for_object_detection")


def loss_of_transformers(authors, outputs, batch, weights=(1, 5, 2), none=0.1, every=True):
    """Of a whole batch over its images, and of every layer or the last."""
    torch = pytest.importorskip("torch")
    rows, labels = np.flatnonzero(batch["inputs_segment_ids"][:, 0]), []
    values = jax.tree.map(lambda x: torch.tensor(np.array(x[:, rows])), outputs.values)
    for row in rows:
        real = batch["targets_segment_ids"][row] > 0
        classes = torch.tensor(batch["targets"][row][real] - 1, dtype=torch.int64)
        boxes = torch.tensor(batch["boxes"][row][real] / UNIT, dtype=torch.float32)
        labels.append({"class_labels": classes, "boxes": boxes})
    costs = dict(zip(("class_cost", "bbox_cost", "giou_cost"), weights, strict=True))
    config = pytest.importorskip("transformers").DetrConfig
    settings = config(num_labels=C, auxiliary_loss=every, eos_coefficient=none, **costs)
    last = jax.tree.map(operator.itemgetter(-1), values)
    _, parts, _ = authors.ForObjectDetectionLoss(
        last.logits, labels, "cpu", last.boxes, settings, values.logits, values.boxes
    )
    of_part = dict(zip(("loss_ce", "loss_bbox", "loss_giou"), weights, strict=True))
    # Layers before the last have their number at the end.
    weight = {name: of_part.get(name.rstrip("_0123456789"), 0.0) for name in parts}
    return sum(weight[name] * parts[name].item() for name in parts)


@pytest.mark.parametrize("counts", [(2, 0, 3, 1), (2, 0, 3), (0, 0, 0, 0)])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {}),
        (dict(auxiliary_losses=False), dict(every=False)),
        (
            dict(box_weights=(2.0, 1.0, 3.0), no_object_weight=0.4),
            dict(weights=(2, 1, 3), none=0.4),
        ),
    ],
)
def test_equals_the_loss_of_transformers(authors, counts, changes, words):
    """One image has no boxes, then one row has no image either, then no image has boxes."""
    outputs, batch = case((*counts, 0)[:B], len(counts))
    loss, weight, sums = compiled(a_loss(**changes))(outputs, batch)
    assert weight == len(counts)
    expected = loss_of_transformers(authors, outputs, batch, **words)
    np.testing.assert_allclose(loss / weight, expected, rtol=1e-5)
    np.testing.assert_allclose(detection.means(sums)["loss"], expected, rtol=1e-5)


def test_where_there_are_no_boxes_at_all_queries_learn_to_tell_none():
    outputs, batch = case((0, 0, 0, 0))
    _, _, sums = compiled(a_loss())(outputs, batch)
    means = detection.means(sums)
    assert means["box_loss"] == means["class_error"] == 0 < means["class_loss"]
    mean = jax.jit(jax.grad(lambda predictions: a_loss()(Outputs(predictions), batch)[0]))
    gradient = mean(outputs.values)
    assert np.all(np.isfinite(gradient.logits)) and np.any(gradient.logits)
    assert not np.any(gradient.boxes)
    nothing, *_ = compiled(a_loss(no_object_weight=0.0))(outputs, batch)
    assert nothing == 0


def test_parts_of_a_batch_add_up_to_the_whole():
    """Losses, and sums that evaluation reports, though the parts hold unequally many boxes."""
    outputs, batch = case()
    loss = a_loss()
    whole = compiled(loss)(outputs, batch)
    predictions, cut = outputs.values, loss.with_totals(batch)
    parts = []
    for row in range(B):
        part = Outputs(jax.tree.map(lambda x, row=row: x[:, row : row + 1], predictions))
        one = {name: values[row : row + 1] for name, values in cut.items()}
        parts.append(compiled(loss)(part, one))
    added = jax.tree.map(lambda *values: sum(values), *parts)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), whole, added)


def test_giou_is_that_of_transformers(authors):
    torch = pytest.importorskip("torch")
    boxes = np.random.default_rng(0).uniform(0.05, 0.9, (50, 4)).astype(np.float32)
    corners = authors.center_to_corners_format(torch.tensor(boxes))
    expected = authors.generalized_box_iou(corners, corners).numpy()
    gious = jax.jit(detection.giou)(*np.broadcast_arrays(boxes[:, None], boxes))
    np.testing.assert_allclose(gious, expected, rtol=1e-3, atol=1e-5)


def test_giou_is_a_number_of_points():
    """From -1, of boxes far apart, to 1, of equal ones."""
    giou = jax.jit(detection.giou)
    some = jnp.array([[0.5, 0.5, 0.2, 0.2]])
    assert giou(some, some) == pytest.approx(1)
    apart = giou(jnp.array([[0.1, 0.1, 0.01, 0.01]]), jnp.array([[0.9, 0.9, 0.01, 0.01]]))
    assert -1 < apart.item() < -0.99
    point = jnp.array([[0.3, 0.3, 0.0, 0.0]])
    of_point = jax.jit(jax.value_and_grad(lambda a: detection.giou(a, point)[0]))
    value, gradient = of_point(point)
    assert value == 0 and np.all(np.isfinite(gradient))
