"""Figures show what the rows hold, and the same numbers give the same files."""

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments.harness import figures

ROWS = [
    {"scheme": scheme, "layers": layers, "seed": seed, "y": layers + seed}
    for scheme, layers, seed in itertools.product(("post_ln", "admin"), (2, 6, 18), range(3))
]
AXES = {"x": "layers", "xlabel": "layers", "ylabel": "y"}


def test_the_same_numbers_give_the_same_files(tmp_path):
    files = []
    for name in "ab":
        figure = figures.lines(ROWS, y="y", by="seed", panel="scheme", **AXES)
        link = figures.save(figure, tmp_path, name, "what is seen")
        assert link == f"![what is seen]({tmp_path.name}/{name}.svg)"
        files.append([(tmp_path / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")])
    assert files[0] == files[1]
    assert all(len(content) < 150_000 for content in files[0])


def test_lines_go_through_means_in_their_intervals():
    (axes,) = figures.lines(ROWS, y="y", by="scheme", xscale="log", **AXES).axes
    x, y = np.array(axes.lines[0].get_data())
    np.testing.assert_array_equal(x, [2, 6, 18])
    np.testing.assert_array_equal(y, x + 1)
    half = stats.t.ppf(0.975, 2) / np.sqrt(3)  # of three seeds, one apart
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    assert (band.min(), band.max()) == pytest.approx((3 - half, 19 + half))
    assert axes.get_ylim()[1] > 19 + half
    # Where three seeds have become two, there is no band, and none stretches the axis.
    fewer = [row for row in ROWS if row["seed"] < 2 or row["layers"] < 18]
    (axes,) = figures.lines(fewer, y="y", by="scheme", **AXES).axes
    assert axes.get_ylim()[1] < 20
    # Of two seeds the interval is too wide to be shown whole.
    two = [row for row in ROWS if row["seed"] < 2]
    (axes,) = figures.lines(two, y="y", by="scheme", **AXES).axes
    assert axes.get_ylim()[1] < 20 < 18.5 + stats.t.ppf(0.975, 1) / 2
