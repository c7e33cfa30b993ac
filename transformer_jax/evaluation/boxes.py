"""Scores of detected boxes by pycocotools, which is what papers report."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

# Of pycocotools' summary, what is reported, and its place there.
_PLACES = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5, "ar100": 8}

# The boxes of an image as COCO writes them: "bbox" is x, y, width and height in pixels of the file,
# "category_id" a class. True ones may have an "area", by which they are small (below 32^2), medium
# or large (from 96^2 on), and are "iscrowd" if they may be found any number of times, or not at
# all, which are "difficult" besides where they are single objects; detected ones have a "score".
Boxes = list[dict[str, Any]]


def average_precision(
    truths: Sequence[Boxes], predictions: Sequence[Boxes], names: Sequence[str]
) -> dict[str, float]:
    """COCO's scores of all images (Lin et al. 2014; cocodataset.org, "Detection Evaluation").

    "ap" is the mean precision over classes, recalls 0, 0.01 ... 1 and IoU of 0.5, 0.55 ... 0.95, of
    at most 100 boxes an image; "ap50" and "ap75" of one IoU; "ap_small", "ap_medium" and "ap_large"
    of boxes of one size; "ar100" the mean recall; "ap50_any" takes all classes for one; "ap50/NAME"
    is of one. What there is no box for is left out.
    """
    evaluated = _evaluated(truths, predictions, len(names), by_class=True)
    scores = {name: evaluated.stats[place] for name, place in _PLACES.items()}
    scores["ap50_any"] = _evaluated(truths, predictions, len(names), by_class=False).stats[1]
    # By IoU, recall, class, size of boxes and most boxes an image
    of_classes = evaluated.eval["precision"][0, :, :, 0, -1].mean(axis=0)
    scores |= {f"ap50/{name}": score for name, score in zip(names, of_classes, strict=True)}
    return {name: float(score) for name, score in scores.items() if score > -1}


def _evaluated(truths: Any, predictions: Any, classes: int, *, by_class: bool) -> Any:
    # Only here, since what does not detect anything does without it.
    from pycocotools.cocoeval import COCOeval

    class Evaluation(COCOeval):
        """A difficult box may be found as a crowd may, but overlaps as any other box does: a
        crowd's IoU is over what is detected alone, so that it swallows all that lies inside."""

        def computeIoU(self, imgId, catId):
            kinds = [catId] if self.params.useCats else self.params.catIds
            truths: Any = self._gts  # pyright: ignore
            rows = [row for kind in kinds for row in truths[imgId, kind] if row["difficult"]]
            for row in rows:
                row["iscrowd"] = 0
            overlaps = super().computeIoU(imgId, catId)
            for row in rows:
                row["iscrowd"] = 1
            return overlaps

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = Evaluation(_indexed(truths, classes), _indexed(predictions, classes), "bbox")
        evaluation.params.useCats = int(by_class)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def _indexed(boxes: Sequence[Boxes], classes: int) -> Any:
    """What pycocotools reads; its ids of boxes count from 1, since 0 says that none is matched."""
    from pycocotools.coco import COCO

    rows: Any = [row | {"image_id": number} for number, group in enumerate(boxes) for row in group]
    coco: Any = COCO()
    coco.dataset = {
        "images": [{"id": number} for number in range(len(boxes))],
        "categories": [{"id": number} for number in range(classes)],
        "annotations": [
            {"area": row["bbox"][2] * row["bbox"][3], "iscrowd": 0, "difficult": 0}
            | row
            | {"id": number}
            for number, row in enumerate(rows, start=1)
        ],
    }
    coco.createIndex()
    return coco
