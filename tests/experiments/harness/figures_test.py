"""Figures show what the rows hold, and the same numbers give the same files."""

import itertools

import numpy as np

from experiments.harness import figures

ROWS = [
    {"scheme": scheme, "layers": layers, "seed": seed, "y": layers + seed}
    for scheme, layers, seed in itertools.product(("post_ln", "admin"), (2, 6, 18), range(3))
]
AXES = {"x": "layers", "xlabel": "layers", "ylabel": "y"}


def test_the_same_numbers_give_the_same_files(tmp_path):
    files = []
    for number in range(2):
        out = tmp_path / str(number) / "results"
        out.mkdir(parents=True)
        figure = figures.lines(ROWS, y="y", by="seed", panel="scheme", **AXES)
        shown = figures.save(figure, out, "name", "what is seen")
        assert shown == "![what is seen](results/name.svg)"
        files.append([(out / f"name.{kind}").read_bytes() for kind in ("svg", "png")])
    assert files[0] == files[1]
    assert all(len(content) < 150_000 for content in files[0])


def test_lines_go_through_medians_and_bands_hold_the_values():
    (axes,) = figures.lines(ROWS, y="y", by="scheme", xscale="log", **AXES).axes
    x, y = np.array(axes.lines[0].get_data())
    np.testing.assert_array_equal(x, [2, 6, 18])
    np.testing.assert_array_equal(y, x + 1)
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert band[:, 1].min() >= 2 and band[:, 1].max() <= 20
