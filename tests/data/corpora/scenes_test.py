"""Generated scenes: their boxes are exact, and a scene depends on its split and number alone."""

import numpy as np
import pytest

from transformer_jax.data.corpora import scenes


def some(name, expression="train[:200]"):
    return [scene for _, scene in scenes.scenes(name, [expression])]


@pytest.mark.parametrize("name", scenes.OBJECTS)
def test_boxes_hold_objects_that_do_not_overlap(name):
    for scene in some(name):
        assert 1 <= len(scene.boxes) == len(scene.labels) <= 4
        covered = np.zeros((scenes.SIZE, scenes.SIZE), int)
        for x0, y0, x1, y1 in scene.boxes:
            assert 0 <= x0 < x1 <= scenes.SIZE and 0 <= y0 < y1 <= scenes.SIZE
            covered[y0:y1, x0:x1] += 1
        assert covered.max() == 1
    labels = {label for scene in some(name) for label in scene.labels}
    assert len(labels) == {"shapes": 4, "digits": 10}[name]


def test_the_boxes_of_shapes_end_where_they_are_lit():
    """Light beside an object is below 0.6, as the noise is, but for what is next to it."""
    for scene in some("shapes"):
        lit = scene.pixels > 0.58 * 255
        for x0, y0, x1, y1 in scene.boxes:
            box = lit[y0:y1, x0:x1]
            for edge in (box[0], box[-1], box[:, 0], box[:, -1]):
                assert edge.any()
            lit[y0:y1, x0:x1] = False
        assert not lit.any()


def test_more_scenes_leave_those_before_as_they_were():
    few, many = some("shapes", "train[2:5]"), some("shapes", "train[:9]")
    for a, b in zip(few, many[2:5], strict=True):
        np.testing.assert_array_equal(a.pixels, b.pixels)
        assert (a.boxes, a.labels) == (b.boxes, b.labels)
    others = some("shapes", "validation[2:5]")
    assert not any(np.array_equal(a.pixels, b.pixels) for a, b in zip(few, others, strict=True))


def test_splits_share_no_digit():
    glyphs = [{glyph.tobytes() + bytes(glyph.shape) for _, glyph in pairs}
              for pairs in scenes._glyphs().values()]  # fmt: skip
    train, validation, test = glyphs
    assert len(train) > 1400 and len(validation) > 150 and len(test) > 150
    assert len(train & (validation | test)) <= 1 and len(validation & test) <= 1


@pytest.mark.parametrize(
    ("name", "expression", "words"),
    [
        ("blobs", "train[:5]", "data.name='blobs': .*'shapes' or 'digits'"),
        ("shapes", "train", r"no part 'train'.*train\[:20000\]"),
        ("shapes", "dev[:5]", "no part 'dev"),
        ("shapes", "train[5:5]", "no part"),
        ("shapes", "train[:-5]", "no part"),
    ],
)
def test_what_there_is_not_is_refused(name, expression, words):
    with pytest.raises(ValueError, match=words):
        some(name, expression)
