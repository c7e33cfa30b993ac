"""Figures show what the rows hold, and the same numbers give the same files."""

import itertools

import numpy as np
import pytest

from experiments.harness import figures

ROWS = [
    {"scheme": scheme, "layers": layers, "seed": seed, "y": layers + seed}
    for scheme, layers, seed in itertools.product(("post_ln", "admin"), (2, 6, 18), range(3))
]
AXES = {"x": "layers", "xlabel": "layers", "ylabel": "y"}
DRAW = {
    "lines": lambda: figures.lines(ROWS, y="y", by="scheme", xscale="log", **AXES),
    "panels": lambda: figures.lines(ROWS, y="y", by="seed", panel="scheme", **AXES),
    "heatmaps": lambda: figures.heatmaps(
        {"post_ln": np.eye(3), "admin": np.ones((3, 4))}, xlabel="j", ylabel="i", label="beta"
    ),
}


@pytest.mark.parametrize("name", ["panels", "heatmaps"])
def test_the_same_numbers_give_the_same_files(name, tmp_path):
    files = []
    for number in range(2):
        out = tmp_path / str(number) / "results"
        out.mkdir(parents=True)
        shown = figures.save(DRAW[name](), out, name, "what is seen")
        assert shown == f"![what is seen](results/{name}.svg)"
        files.append([(out / f"{name}.{kind}").read_bytes() for kind in ("svg", "png")])
    assert files[0] == files[1]
    assert all(len(content) < 150_000 for content in files[0])


def test_lines_go_through_medians_and_bands_hold_the_values():
    (axes,) = DRAW["lines"]().axes
    x, y = np.array(axes.lines[0].get_data())
    np.testing.assert_array_equal(x, [2, 6, 18])
    np.testing.assert_array_equal(y, x + 1)
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert band[:, 1].min() >= 2 and band[:, 1].max() <= 20


def test_a_heatmap_shows_the_lower_triangle_that_ends_in_the_last_corner():
    shown = []
    for axes in DRAW["heatmaps"]().axes[:2]:
        colours = axes.images[0].get_array()
        assert colours is not None
        shown.append(np.isfinite(np.ma.filled(colours, np.nan)))
    np.testing.assert_array_equal(shown[0], [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(shown[1], [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])


def test_a_status_grid_counts_the_runs_that_trained():
    rows = [
        {"lr": 1e-3, "layers": 6, "status": "finished"},
        {"lr": 1e-3, "layers": 6, "status": "diverged"},
        {"lr": 1e-2, "layers": 6, "status": "plateaued"},
    ]
    labels = {"xlabel": "learning rate", "ylabel": "layers"}
    figure = figures.statuses(rows, x="lr", y="layers", status="status", **labels)
    assert [text.get_text() for text in figure.axes[0].texts] == ["1/2 x", "0/1 -"]
