"""What is handed to pycocotools, against a plain formula of average precision."""

import numpy as np
import pytest

from transformer_jax.evaluation.boxes import average_precision

NAMES = ("cat", "dog", "eel")
KINDS = range(len(NAMES))
SIZES = {"ap_small": (0, 32**2), "ap_medium": (32**2, 96**2), "ap_large": (96**2, 1e10)}


def a_set(seed, images=12):
    """Random boxes, and predicted ones that are moved from some of them; scores have ties."""
    rng = np.random.default_rng(seed)
    truths, predictions = [], []
    for _ in range(images):
        boxes = []
        for _ in range(rng.integers(0, 5)):
            sides = np.exp(rng.uniform(2.5, 5, 2))
            row = {"bbox": [*rng.uniform(0, 150, 2), *sides], "category_id": rng.integers(3)}
            # As segments have them, areas are less than those of boxes.
            ignored = int(rng.uniform() < 0.3)
            row |= {"iscrowd": ignored, "difficult": ignored * int(rng.uniform() < 0.5)}
            boxes.append(row | {"area": 0.7 * sides.prod()})
        moved = [np.array(row["bbox"]) + rng.normal(0, 4, 4) for row in boxes]
        others = [rng.uniform(10, 60, 4) for _ in range(rng.integers(0, 3))]
        guesses = [row["category_id"] if rng.uniform() < 0.8 else rng.integers(3) for row in boxes]
        guesses += list(rng.integers(0, 3, len(others)))
        predicted = []
        for box, of in zip([*moved, *others], guesses, strict=True):
            row = {"bbox": box.tolist(), "category_id": int(of)}
            predicted.append(row | {"score": rng.integers(1, 9) / 10})
        predictions.append(predicted)
        truths.append(boxes)
    return truths, predictions


def overlap(predicted, true):
    """IoU; with a crowd, not a difficult box, the share of the predicted box that is in it."""
    (ax, ay, aw, ah), (bx, by, bw, bh) = predicted["bbox"], true["bbox"]
    width, height = min(ax + aw, bx + bw) - max(ax, bx), min(ay + ah, by + bh) - max(ay, by)
    common = max(width, 0) * max(height, 0)
    crowd = true["iscrowd"] and not true["difficult"]
    return common / (aw * ah if crowd else aw * ah + bw * bh - common)


def plain_ap(truths, predictions, least, kind, area=(0, 1e10)):
    """The precision at 101 recalls of one class, from its definition; None without boxes of it."""
    hits, total = [], 0
    for every, predicted in zip(truths, predictions, strict=True):
        gold = [row for row in every if kind in (row["category_id"], None)]
        ignored = [row["iscrowd"] or not area[0] <= row["area"] < area[1] for row in gold]
        total += ignored.count(False)
        matches = set()
        some = [row for row in predicted if kind in (row["category_id"], None)]
        # Ties as pycocotools has them
        for row in sorted(some, key=lambda row: (-row["score"], row["category_id"]))[:100]:
            # Boxes that count come first: others are looked at where none of these fits.
            fits = [
                (not ignored[m], overlap(row, true), m)
                for m, true in enumerate(gold)
                if overlap(row, true) >= least and (m not in matches or true["iscrowd"])
            ]
            best = max(fits)[2] if fits else None
            matches.add(best)
            size = row["bbox"][2] * row["bbox"][3]
            if not (ignored[best] if best is not None else not area[0] <= size < area[1]):
                hits.append((row["score"], best is not None))
    if not total:
        return None
    right = np.array([hit for _, hit in sorted(hits, key=lambda pair: -pair[0])], float)
    recall = np.cumsum(right) / total
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    return np.mean(
        [precision[recall >= wanted].max(initial=0.0) for wanted in np.linspace(0, 1, 101)]
    )


def mean_of(values):
    some = [value for value in values if value is not None]
    return np.mean(some) if some else None


@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_their_formula(seed):
    boxes = a_set(seed)
    scores, every = average_precision(*boxes, NAMES), np.linspace(0.5, 0.95, 10)
    of_class = {f"ap50/{NAMES[kind]}": plain_ap(*boxes, 0.5, kind) for kind in KINDS}
    expected = of_class | {
        "ap": mean_of(plain_ap(*boxes, t, kind) for t in every for kind in KINDS),
        "ap50": mean_of(of_class.values()),
        "ap75": mean_of(plain_ap(*boxes, 0.75, kind) for kind in KINDS),
        "ap50_any": plain_ap(*boxes, 0.5, None),
    }
    for name, area in SIZES.items():
        expected[name] = mean_of(plain_ap(*boxes, t, k, area) for t in every for k in KINDS)
    known = {name: score for name, score in expected.items() if score is not None}
    assert known.keys() == scores.keys() - {"ar100"}
    for name, score in known.items():
        np.testing.assert_allclose(scores[name], score, atol=1e-9, err_msg=name)


def test_what_is_found_exactly_scores_1_and_nothing_scores_0(capsys):
    truths, _ = a_set(0)
    exact = [[row | {"score": 1.0} for row in rows] for rows in truths]
    assert average_precision(truths, exact, NAMES)["ap"] == pytest.approx(1)
    assert average_precision(truths, [[] for _ in truths], NAMES)["ap"] == 0
    assert average_precision([[]], exact[:1], NAMES) == {}
    assert capsys.readouterr().out == ""
