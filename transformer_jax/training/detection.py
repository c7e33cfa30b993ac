"""The loss of a set of boxes: each box is matched with one query, and all other queries tell none.

Carion et al. 2020 (2005.12872), section 3.1 and appendix A.2, and the authors' code.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from transformer_jax.data.prepare.pictures import UNIT
from transformer_jax.devices.mesh import each_by_its_rows
from transformer_jax.models.family import Batch, Outputs
from transformer_jax.models.layers.heads import Boxes
from transformer_jax.training import losses
from transformer_jax.training.cross_entropy import LossSettings

METRICS = (
    "loss_of_classes",
    "loss_of_boxes",
    "class_loss",
    "box_loss",
    "giou_loss",
    "class_error",
    "cardinality_error",
)
_LEAST = 1e-9  # of an area that is divided by: two points have none


def totals(batch: Batch) -> Batch:
    """Images and boxes of a whole batch."""
    counts = {"all_images": _images(batch), "all_boxes": batch["targets_segment_ids"] > 0}
    rows = len(batch["targets"])
    return {name: jnp.full((rows, 1), jnp.sum(real), jnp.float32) for name, real in counts.items()}


def set_loss(outputs: Outputs, batch: Batch, settings: LossSettings) -> losses.Result:
    """The loss of every decoder layer that counts; the number of images is the weight.

    With n boxes and B images of N queries in the whole batch, and W = n + w (B N - n), a layer's
    loss is, times B, cross-entropy / W + (5 L1 + 2 (1 - GIoU)) / max(n, 1) by the default weights,
    where w weighs the queries that tell nothing. Each layer is matched anew.

    The sums, of which each has the weight that it is divided by:
      loss_of_classes, loss_of_boxes: the two parts of the loss, of all layers that count.
      class_loss, box_loss, giou_loss: cross-entropy, L1 and 1 - GIoU of the last layer.
      class_error: share of the boxes whose query does not tell their class.
      cardinality_error: how far the number of queries that tell something is off, by image.
    """
    predicted: Boxes = outputs.values
    if not settings.auxiliary_losses:
        predicted = jax.tree.map(lambda of_layers: of_layers[-1:], predicted)
    real, classes, images = batch["targets_segment_ids"] > 0, batch["targets"] - 1, _images(batch)
    boxes = batch["boxes"].astype(jnp.float32) / UNIT
    queries, none = match(predicted, classes, boxes, real, settings), predicted.logits.shape[-1] - 1

    # What each query is to tell: a box's class, or none. No two boxes have one query.
    tell = jax.vmap(lambda query, of: jnp.full(predicted.logits.shape[2], none).at[query].set(of))
    targets = jax.vmap(tell, (0, None))(queries, jnp.where(real, classes, none))
    weights = jnp.where(targets == none, settings.no_object_weight, 1.0) * images[None, :, None]
    likely = jnp.take_along_axis(jax.nn.log_softmax(predicted.logits), targets[..., None], axis=-1)
    matched_boxes = jnp.take_along_axis(predicted.boxes, queries[..., None], axis=2)
    distances = jnp.sum(jnp.abs(matched_boxes - boxes[None]), axis=-1)
    gaps = 1 - giou(matched_boxes, boxes[None])
    in_class, in_box, in_giou = (
        jnp.sum(x, axis=(1, 2))  # by layer
        for x in (-weights * likely[..., 0], real[None] * distances, real[None] * gaps)
    )
    weight, number, count = jnp.sum(weights[-1]), jnp.sum(real), jnp.sum(images)
    of_class, of_box, of_giou = settings.box_weights
    of_classes = of_class * jnp.sum(in_class)
    of_boxes = of_box * jnp.sum(in_box) + of_giou * jnp.sum(in_giou)

    all_images, all_boxes = batch["all_images"][0, 0], batch["all_boxes"][0, 0]
    all_empty = all_images * predicted.logits.shape[2] - all_boxes
    all_weights = all_boxes + settings.no_object_weight * all_empty
    loss = of_classes / jnp.maximum(all_weights, _LEAST) + of_boxes / jnp.maximum(all_boxes, 1)

    predicted_class = jnp.argmax(predicted.logits[-1], axis=-1)
    wrong = real & (jnp.take_along_axis(predicted_class, queries[-1], axis=-1) != classes)
    off = jnp.abs(jnp.sum(predicted_class != none, axis=-1) - jnp.sum(real, axis=-1))
    pairs = {
        "loss_of_classes": (of_classes, weight),
        "loss_of_boxes": (of_boxes, number),
        "class_loss": (in_class[-1], weight),
        "box_loss": (in_box[-1], number),
        "giou_loss": (in_giou[-1], number),
        "class_error": (jnp.sum(wrong), number),
        "cardinality_error": (jnp.sum(off, where=images), count),
    }
    sums = {name: (jnp.float32(total), jnp.float32(of)) for name, (total, of) in pairs.items()}
    return all_images * loss, jnp.float32(count), sums


def means(sums: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """The means, and the "loss" that is their sum: 0 of boxes where there are none.

    So of several batches it is the loss of all as one, however they are cut.
    """
    some = {name: pair for name, pair in sums.items() if float(pair[1])}
    metrics = dict.fromkeys(sums, 0.0) | losses.means(some)
    return {"loss": metrics["loss_of_classes"] + metrics["loss_of_boxes"]} | metrics


def match(
    predictions: Boxes,
    classes: Int[Array, "B M"],
    boxes: Float[Array, "B M 4"],
    real: Bool[Array, "B M"],
    settings: LossSettings,
) -> Int[Array, "L B M"]:
    """The query of each box, a different one each, by the least sum of costs; without gradient.

    A pair costs -p(class), L1 and -GIoU, by the same weights as in the loss. N is at least M.
    Places without a box get the queries that are left, as they cost nothing.
    """
    predictions = jax.lax.stop_gradient(predictions)
    of_class, of_box, of_giou = settings.box_weights
    shares = jax.nn.softmax(predictions.logits)
    places = jnp.maximum(classes, 0)[None, :, None]
    places = jnp.broadcast_to(places, (*shares.shape[:3], classes.shape[1]))
    likely = jnp.take_along_axis(shares, places, axis=-1)
    a, b = predictions.boxes[..., None, :], boxes[None, :, None]
    distances = jnp.sum(jnp.abs(a - b), axis=-1)
    costs = of_box * distances - of_class * likely - of_giou * giou(a, b)
    costs = jnp.where(real[None, :, None], costs, 0.0)
    return each_by_its_rows(jax.vmap(jax.vmap(assign)), costs, axis=1)


def assign(costs: Float[Array, "N M"]) -> Int[Array, "M"]:
    """The row of each column, a different one each, by the least sum of costs."""
    rows, columns = hungarian_algorithm(costs)
    return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))


def giou(a: Float[Array, "*B 4"], b: Float[Array, "*B 4"]) -> Float[Array, "*B"]:
    """IoU less the share of the box around both that is in neither (Rezatofighi et al. 2019).

    Boxes are centre x and y, width and height. Of two points at one place it is 0.
    """
    (a_low, a_high), (b_low, b_high) = corners(a), corners(b)
    common = _area(jnp.maximum(jnp.minimum(a_high, b_high) - jnp.maximum(a_low, b_low), 0))
    union = _area(a[..., 2:]) + _area(b[..., 2:]) - common
    around = _area(jnp.maximum(a_high, b_high) - jnp.minimum(a_low, b_low))
    empty = (around - union) / jnp.maximum(around, _LEAST)
    return common / jnp.maximum(union, _LEAST) - empty


def _area(sides: Float[Array, "*B 2"]) -> Float[Array, "*B"]:
    return sides[..., 0] * sides[..., 1]


def corners(boxes: Float[Array, "*B 4"]) -> tuple[Float[Array, "*B 2"], Float[Array, "*B 2"]]:
    """The corners with the least and with the largest x and y."""
    centres, sides = boxes[..., :2], boxes[..., 2:]
    return centres - sides / 2, centres + sides / 2


def _images(batch: Batch) -> Bool[Array, "B"]:
    """Which rows hold an image; the others fill up an evaluation's last batch."""
    return batch["inputs_segment_ids"][:, 0] > 0
