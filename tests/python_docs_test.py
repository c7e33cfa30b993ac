"""The page on Python and the tutorial run as they stand, cell by cell."""

import json
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import pytest

import transformer_jax as tj
from tests.defaults import SMALL
from tests.docs_test import blocks

DOCS = Path(__file__).parents[1] / "docs"
# Of the page's run, which has been trained before.
QUICK = SMALL | {
    "data.max_source_length": 24,
    "data.max_target_length": 24,
    "train.steps": 2,
    "train.evaluate_every": 2,
    "checkpoint.every": 2,
}

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, programs that are worth their time, and no display."""
    monkeypatch.chdir(tmp_path)
    jax.config.update("jax_disable_most_optimizations", False)
    plt.switch_backend("Agg")
    yield tmp_path
    jax.config.update("jax_disable_most_optimizations", True)
    plt.close("all")


def test_the_page_runs_as_it_stands(folder):
    cache = {"data.cache_dir": str(folder / "cache")}
    tj.train(tj.load_config("configs/quickstart.py", **QUICK, **cache), "runs/quickstart")
    names = {}
    for language, text in blocks(DOCS / "python.md"):
        if language == "python":
            exec(compile(text, "python.md", "exec"), names)
    assert names["trainer"].state.step == 20 and names["curve"]
    assert (folder / "runs/own_loop/checkpoints/20").is_dir()
    assert {row["run"] for row in names["results"]} == {"quickstart", "admin", "own_loop"}


def test_the_tutorial_runs_as_it_stands(folder):
    names = {}
    for cell in json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tutorial", "exec"), names)
    assert (folder / "tutorial/answer.png").stat().st_size > 0
    loss = names["loss"]
    # What its last lines say: Pre-LN is ahead either way, and Post-LN gains from warm-up.
    ordered = sorted(loss, key=lambda name: loss[name])
    assert ordered[-1] == "post_ln, warm-up 0" and ordered[0].startswith("pre_ln")
