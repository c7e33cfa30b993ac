"""Runs are data, and their ids say what they do, no more and no less."""

from typing import Any

import pytest

from experiments.harness.sweep import Run, grid, zipped

CONFIG = "configs/bigram_copy.py"


def run(**changes):
    plain: dict[str, Any] = dict(config=CONFIG, overrides={"seed": 1}, labels={"seed": 1})
    return Run(**(plain | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"scheme": "post_ln"}},
        {"overrides": {"seed": 1, "data.dir": "elsewhere", "data.cache_dir": "there"}},
        {"overrides": {"seed": 1, "checkpoint.every": 7, "decode.beam_size": 2}},
        {"overrides": {"seed": 1, "mesh.fsdp": 8, "model.remat": "full"}},
        {"overrides": {"model.num_layers": 6, "seed": 1}},  # as the config has it; in another order
    ],
)
def test_an_id_does_not_depend_on(changes):
    assert run(**changes).id == run().id


@pytest.mark.parametrize(
    "changes",
    [
        {"overrides": {"seed": 2}},
        {"overrides": {"seed": 1, "train.steps": 7}},
        {"overrides": {"seed": 1, "train.log_every": 7}},  # reports read the log
        {"config": "configs/quickstart.py"},
        {"measure": {}},
        {"measure": {"size": 1}},
        {"measure": {}, "train": False},
    ],
)
def test_an_id_depends_on(changes):
    others = [run().id, run(measure={"size": 2}).id, run(measure={"size": 2}, train=False).id]
    assert run(**changes).id not in others


def test_a_run_that_does_nothing_is_refused():
    with pytest.raises(ValueError, match="does nothing"):
        run(train=False)


def test_a_grid_holds_every_combination_and_zipped_rows_go_side_by_side():
    assert grid(a=[1, 2], b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    assert zipped(a=[1, 2], b="xy") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(ValueError):
        zipped(a=[1, 2], b="x")
