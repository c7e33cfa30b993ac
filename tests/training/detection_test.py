"""The loss of a set against plain loops, SciPy's matching, and transformers' loss."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

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


def slow_giou(a, b):
    """Of two boxes (cx, cy, w, h), coordinate by coordinate."""
    sides = [(box[0] - box[2] / 2, box[0] + box[2] / 2, box[1] - box[3] / 2, box[1] + box[3] / 2)
             for box in (a, b)]  # fmt: skip
    (ax, aX, ay, aY), (bx, bX, by, bY) = sides
    common = max(min(aX, bX) - max(ax, bx), 0) * max(min(aY, bY) - max(ay, by), 0)
    union = a[2] * a[3] + b[2] * b[3] - common
    around = (max(aX, bX) - min(ax, bx)) * (max(aY, bY) - min(ay, by))
    return common / union - (around - union) / around


def slow(outputs, batch, *, weights=(1.0, 5.0, 2.0), none=0.1, layers=range(L)):
    """Loss of a whole batch over its images, as Carion et al. 2020 write it, image by image."""
    of_class, of_box, of_giou = weights
    predictions = jax.tree.map(lambda x: np.asarray(x, np.float64), outputs.values)
    rows = [row for row, ids in enumerate(batch["inputs_segment_ids"]) if ids[0]]
    total = 0.0
    for layer in layers:
        entropy = weight = distance = gap = boxes = 0.0
        for row in rows:
            logits = predictions.logits[layer, row]
            shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            real = np.flatnonzero(batch["targets_segment_ids"][row])
            truths = [(batch["targets"][row, m] - 1, batch["boxes"][row, m] / UNIT) for m in real]
            costs = np.zeros((N, len(truths)))
            for n, (m, (label, box)) in itertools.product(range(N), enumerate(truths)):
                guess = predictions.boxes[layer, row, n]
                costs[n, m] = of_box * np.abs(guess - box).sum() - of_class * shares[n, label]
                costs[n, m] -= of_giou * slow_giou(guess, box)
            match = dict(zip(*linear_sum_assignment(costs), strict=True))
            for n in range(N):
                label, own_weight = C, none
                if n in match:
                    label, box = truths[match[n]]
                    own_weight, boxes = 1.0, boxes + 1
                    distance += np.abs(predictions.boxes[layer, row, n] - box).sum()
                    gap += 1 - slow_giou(predictions.boxes[layer, row, n], box)
                entropy -= own_weight * np.log(shares[n, label])
                weight += own_weight
        total += of_class * entropy / weight
        total += (of_box * distance + of_giou * gap) / max(boxes, 1)
    return total


@functools.cache
def compiled(loss):
    return jax.jit(loss)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, {}),
        (dict(auxiliary_losses=False), dict(layers=[L - 1])),
        (
            dict(box_weights=(2.0, 1.0, 3.0), no_object_weight=0.4),
            dict(weights=(2.0, 1.0, 3.0), none=0.4),
        ),
    ],
)
def test_equals_plain_loops(changes, words):
    """One row has no boxes, and in the second case one has no image either."""
    for images in (B, B - 1):
        outputs, batch = case((2, 0, 3, 1 if images == B else 0), images)
        loss, weight, sums = compiled(a_loss(**changes))(outputs, batch)
        assert weight == images
        expected = slow(outputs, batch, **words)
        np.testing.assert_allclose(loss / weight, expected, rtol=1e-5)
        np.testing.assert_allclose(detection.means(sums)["loss"], expected, rtol=1e-5)


def test_where_there_are_no_boxes_at_all_queries_learn_to_tell_none():
    outputs, batch = case((0, 0, 0, 0))
    loss, weight, sums = compiled(a_loss())(outputs, batch)
    np.testing.assert_allclose(loss / weight, slow(outputs, batch), rtol=1e-5)
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


def test_giou_equals_its_formula_and_is_a_number_of_points():
    """From -1, of boxes far apart, to 1, of equal ones."""
    boxes = np.random.default_rng(0).uniform(0.05, 0.9, (50, 4)).astype(np.float32)
    pairs = list(itertools.combinations(boxes, 2))
    giou = jax.jit(detection.giou)
    gious = giou(*(np.stack(side) for side in zip(*pairs, strict=True)))
    np.testing.assert_allclose(gious, [slow_giou(a, b) for a, b in pairs], rtol=1e-3, atol=1e-5)
    some = jnp.array([[0.5, 0.5, 0.2, 0.2]])
    assert giou(some, some) == pytest.approx(1)
    apart = giou(jnp.array([[0.1, 0.1, 0.01, 0.01]]), jnp.array([[0.9, 0.9, 0.01, 0.01]]))
    assert -1 < apart.item() < -0.99
    point = jnp.array([[0.3, 0.3, 0.0, 0.0]])
    of_point = jax.jit(jax.value_and_grad(lambda a: detection.giou(a, point)[0]))
    value, gradient = of_point(point)
    assert value == 0 and np.all(np.isfinite(gradient))


@pytest.mark.long
def test_equals_the_loss_of_transformers():
    """The authors' loss, in PyTorch, auxiliary losses included."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.loss.loss_for_object_detection")

    outputs, batch = case()
    values = jax.tree.map(lambda x: torch.tensor(np.array(x)), outputs.values)
    labels = []
    for row in range(B):
        real = batch["targets_segment_ids"][row] > 0
        classes = torch.tensor(batch["targets"][row][real] - 1, dtype=torch.int64)
        boxes = torch.tensor(batch["boxes"][row][real] / UNIT, dtype=torch.float32)
        labels.append({"class_labels": classes, "boxes": boxes})
    settings = transformers.DetrConfig(num_labels=C, auxiliary_loss=True)
    expected, *_ = theirs.ForObjectDetectionLoss(
        values.logits[-1], labels, "cpu", values.boxes[-1], settings, values.logits, values.boxes
    )
    loss, weight, _ = compiled(a_loss())(outputs, batch)
    np.testing.assert_allclose(loss / weight, expected.item(), rtol=1e-5)
